"""How far a campaign may still go: it searches, then only confirms, then begins nothing more.

It is over with an interrupt, a full disk, the end of its time, or a failure. Of `max_seconds` the
last part is for confirmations (agent/loop/budget.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.journals.journal import Journal
from agent.journals.outcome import INTERRUPTED
from agent.loop.budget import CampaignConfig, search_seconds
from agent.loop.schedule import Kind
from sandbox.errors import WarpsmithError


@dataclass(eq=False)
class Course:
    """Of one call of `run_campaign`."""

    journal: Journal
    config: CampaignConfig
    interrupted: Callable[[], bool]
    began_s: float
    searching: bool = True
    stopped: str | None = None
    """Why nothing more is begun; what is under way is awaited and recorded."""
    failure: WarpsmithError | None = None
    _cut_short: bool = False

    @property
    def searched(self) -> bool:
        """It searched until the end of its time, or searches yet."""
        return self._cut_short or self.searching

    def allows(self, kind: Kind) -> bool:
        """Whether jobs of this kind may begin."""
        return self.searching or (kind is Kind.CONFIRM and self.stopped is None)

    def look(self) -> bool:
        """At the user, the disk and the clock; returns whether less is allowed than before."""
        before = self.searching, self.stopped
        self._look()
        return before != (self.searching, self.stopped)

    def _look(self) -> None:
        if self.stopped is None and self.interrupted():
            self._stop(INTERRUPTED)
        if self.stopped is None and self.journal.disk_full:
            self._stop("the disk is full")
        limit_s = self.config.max_seconds
        if self.stopped is not None or limit_s is None:
            return
        elapsed_s = time.monotonic() - self.began_s
        if elapsed_s >= limit_s:
            self._cut_short = self.searching
            self._stop(f"max_seconds ({limit_s:g}) is over")
        elif elapsed_s >= search_seconds(self.config):
            self.searching = False

    def fail(self, error: WarpsmithError) -> None:
        self.failure = self.failure or error
        self._stop(str(error))

    def _stop(self, reason: str) -> None:
        self.stopped, self.searching = reason, False
