"""The shared part of a campaign's candidates: waves that were granted, and the next one.

Reads and writes the journal's `granted` events; what a wave holds is agent/loop/allocation.py's to
say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.journals.journal import Journal
from agent.loop.allocation import (
    GRANTED,
    Standing,
    headroom,
    next_wave,
    read_grants,
    write_grants,
)
from agent.loop.budget import CampaignConfig, shares_headroom
from agent.loop.decisions import fresh


class Waves:
    def __init__(self, journal: Journal, config: CampaignConfig) -> None:
        self._journal, self._config = journal, config
        self._granted = read_grants(journal.events(GRANTED))
        self.open = shares_headroom(config)
        """Something may be granted yet."""

    @property
    def begun(self) -> bool:
        """Something was granted, by what all tasks had found."""
        return bool(self._granted)

    def granted(self, task_id: str) -> int:
        """Candidates beyond the task's first share."""
        return sum(self._granted.get(task_id, ()))

    def grant(
        self, waiting: Sequence[str], task_ids: Sequence[str], stopped: Mapping[str, int]
    ) -> dict[str, int]:
        """Candidates for some of the waiting tasks, written down before they are used; none where
        nothing is left, and then no more is ever. The `stopped` have these budgets, and what they
        have not used of them when the run goes on.
        """
        config = self._config
        tried = {id: len(fresh(self._journal.proposals(id))) for id in task_ids}
        standings = [
            Standing(
                id,
                headroom(self._journal.proposals(id), self._journal.measured(id)),
                len(self._granted.get(id, ())),
                config.max_candidates_per_task - tried[id],
            )
            for id in waiting
        ]
        kept = sum(max(0, budget - tried[id]) for id, budget in stopped.items())
        left = (config.max_candidates or 0) - sum(tried.values()) - kept
        wave = 0 if config.allocation is None else config.allocation.wave
        grants = next_wave(standings, left, config.proposals_per_round, wave)
        if grants:
            self._journal.record_event(GRANTED, detail=write_grants(grants))
            for id, count in grants.items():
                self._granted.setdefault(id, []).append(count)
        self.open = bool(grants)
        return grants
