"""What a task's reference is timed against, in its own text: itself, or itself wrapped."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sandbox.judging.statistics import Null, interval, summarise
from sandbox.machine.handle import WorkerFailed
from sandbox.observation import RoundObservation
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig

DISTURBED = 2.0
"""Upper over lower bound of a figure of which one pair was disturbed, or more."""


class Rival:
    """What the reference is timed against: itself, or itself wrapped as a baseline."""

    def __init__(
        self,
        wrap: str | None,
        config: EvalConfig,
        ready: deque[Subject] | None = None,
    ) -> None:
        """`ready`: workers of it, which are used up."""
        self.wrap = wrap
        self.ready = deque[Subject]() if ready is None else ready
        self.waits = False
        """No worker is made but those that are ready."""
        self.left = set(range(config.min_pairs))
        """Pairs that are still to be timed."""
        self.rounds: list[RoundObservation] = []
        self.failed: WorkerFailed | None = None
        self.first = True
        """None of its pairs has been timed."""
        self.spent: list[Subject] = []
        """Workers that were timed, and stay."""

    def wants(self, number: int) -> bool:
        """Whether it is to be in this pair."""
        return self.failed is None and number in self.left

    def disturbed(self, null: Null, config: EvalConfig) -> bool:
        """Whether its pairs agree so badly that more may help."""
        pairs = summarise(self.rounds)
        if self.failed is not None or self.left or not pairs:
            return False
        found = interval(pairs, null, config)
        return found.high > DISTURBED * found.low


def null_of(rounds: Sequence[RoundObservation]) -> Null:
    """Of the reference against itself."""
    return Null(tuple(pair.log_speedup for pair in summarise(rounds)))
