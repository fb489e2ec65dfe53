"""What a task does next: pure functions of its journal rows and of its place in the loop.

No engine, clock or model is known here, so that every engine decides alike and a resumed run goes
on as if it had not been killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.confirm import best_of, lower_bound, refuted, unlikely, unverified, winner_of
from agent.journals.outcome import Stage
from agent.journals.recorded import Recorded
from agent.learner import POLICY_VERSION
from agent.loop.budget import CampaignConfig
from agent.loop.schedule import TaskRun
from sandbox.types import Status

BARREN_ROUNDS = 3
"""Rounds in a row without a new candidate that end a task."""
BARREN_ROUNDS_LEARNING = 16
"""Of a policy that learns, by the same weights: two generations of the longest episodes, each
sampled again. To it a repeated reply is a rollout like any other, by which the weights change."""
SEARCH_OVER = "the time for searching (max_seconds) is over"


@dataclass(frozen=True)
class Propose:
    """Another round."""

    round: int


@dataclass(frozen=True)
class Confirm:
    """Measure this one afresh."""

    record: Recorded


@dataclass(frozen=True)
class Await:
    """A wave may grant a further share of the candidates (agent/loop/waves.py)."""


@dataclass(frozen=True)
class End:
    stage: Stage
    reason: str = ""


def next_step(
    run: TaskRun,
    records: Sequence[Recorded],
    config: CampaignConfig,
    *,
    searching: bool,
    late: bool = False,
    waves: bool = False,
) -> Propose | Confirm | Await | End:
    """Once nothing of the task is outstanding. `searching`: the campaign still is; `late`: the
    task's own share of the time is over; `waves`: candidates are left to be granted.
    """
    if (doubted := doubtful(records, config)) is not None:
        return Confirm(doubted)
    over = search_over(run, records, config)
    if searching and not over and not (late and records):  # The first round is always measured.
        return Propose(next_round(records))
    if searching and waves and not _spent(run, records, config):
        return Await()
    if config.confirm and (winner := winner_of(records)) is not None:
        return Confirm(winner)
    if run.halted is not None:
        return End(Stage.STOPPED, run.halted)
    if over:
        return End(Stage.DONE, _why(run, records, config))
    return End(Stage.STOPPED, SEARCH_OVER)


def doubtful(records: Sequence[Recorded], config: CampaignConfig) -> Recorded | None:
    """What is measured again before anything goes on from it: a winner too fast to be believed, and
    where a policy learns whatever figure of its rollouts is.
    """
    first = unlikely(records) if config.confirm else None
    return first or (unverified(records) if config.learn else None)


def search_over(run: TaskRun, records: Sequence[Recorded], config: CampaignConfig) -> bool:
    """No further round is wanted on this budget."""
    if any(r.pending for r in records):
        return False
    return len(fresh(records)) >= run.budget or _spent(run, records, config)


def unjudged(records: Sequence[Recorded]) -> list[Recorded]:
    """Those of the last round that a fault of ours kept from being judged: nothing was proposed
    after them, so that a later call may judge them as if they were pending.
    """
    last = next_round(records) - 1
    return [
        r
        for r in records
        if r.round == last and r.evaluation and r.evaluation.status is Status.SANDBOX_ERROR
    ]


def next_round(records: Sequence[Recorded]) -> int:
    return 1 + max((r.round for r in records), default=-1)


def bar_again(config: CampaignConfig) -> float | None:
    """What has to be beaten when it is measured again: nothing where winners are confirmed, whole;
    else another search's pair checks what the first said.
    """
    return 1.0 if config.search_figures and not config.confirm else None


def bar(records: Sequence[Recorded], round: int, config: CampaignConfig) -> float | None:
    """What a candidate of this round has to beat: the best of earlier rounds, or eager itself. None
    for a whole measurement, where no confirmation will follow and none is to be spared.
    """
    best = best_of([r for r in records if r.round < round])
    if best is not None and not refuted(best):
        return lower_bound(best)
    return 1.0 if config.confirm or config.search_figures else None


def _spent(run: TaskRun, records: Sequence[Recorded], config: CampaignConfig) -> bool:
    """Nothing more is worth asking for, whatever budget is left."""
    ended = run.exhausted or run.taught or run.halted is not None or bool(_early(records, config))
    return ended or _barren(records, config) is not None


def _why(run: TaskRun, records: Sequence[Recorded], config: CampaignConfig) -> str:
    """A task is done; empty where it has had all its candidates."""
    if run.exhausted:
        return "no more proposals"
    if run.taught:
        return f"max_updates ({config.max_updates}) is reached"
    if (rounds := _barren(records, config)) is not None:
        return f"no new candidate in {rounds} rounds"
    return _early(records, config)


def _barren(records: Sequence[Recorded], config: CampaignConfig) -> int | None:
    """Rounds that brought nothing new, where they are so many that no more are asked for."""
    if not config.learn:
        return _since(fresh(records), records, BARREN_ROUNDS)
    newest = records[-1].proposal.features.get(POLICY_VERSION) if records else None
    others = [r for r in records if r.proposal.features.get(POLICY_VERSION) != newest]
    return _since([*fresh(records), *others], records, BARREN_ROUNDS_LEARNING)


def _since(last: Sequence[Recorded], records: Sequence[Recorded], enough: int) -> int | None:
    """Rounds after these, where they are enough."""
    return enough if next_round(records) - next_round(last) >= enough else None


def _early(records: Sequence[Recorded], config: CampaignConfig) -> str:
    """Why a task is done although it has budget left; empty while it is not."""
    return "" if config.allocation is None else config.allocation.ended(records)


def fresh(records: Sequence[Recorded]) -> list[Recorded]:
    """Those that cost a candidate: the first of each code."""
    return [r for r in records if not r.duplicate]
