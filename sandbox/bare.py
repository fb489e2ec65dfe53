"""A baseline beside eager: rounds that are their calls alone.

Both sides are ours, so that nothing of a round is checked: inputs keep their values, outputs are
let go of rather than handed over, parameters stay. A call meets what it meets in other rounds:
values written to its memory just before "go", after warm-up on other sets; where calls are large,
one set serves all. All the rest took 80 of 130 ms of a round of one reduction (H100). The null
experiment has whole rounds where candidates are to come, since it tells what theirs scatter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sandbox.observation import CaseObservation, Errors, RoundObservation
from sandbox.pair import ProcessPair
from sandbox.subject import Subject
from sandbox.turn import Progress, Turn


class BarePair(ProcessPair):
    """Of a reference that does not change its inputs."""

    restyles = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, judged=False)
        self.keep = None
        self.filled = False

    def round(
        self, single: bool, bounds: Sequence[Errors], following: int
    ) -> tuple[RoundObservation, Sequence[CaseObservation]]:
        order = list(range(self.plan.sets))
        self.secret.shuffle(order)
        sets = order * self.plan.repeats
        if not self.filled and not self.plan.lean:
            self.given.fill(self.plan.sets)
            self.filled = True
        sides = [self.reference, self.candidate]
        self.secret.shuffle(sides)
        with self.silence():
            turns = {side: self.turn(side, sets) for side in sides}
        mine, its = turns[self.reference], turns[self.candidate]
        return self.observed(mine, its, len(sets), single=False), ()

    def turn(self, side: Subject, sets: list[int]) -> Turn:
        """With the other side standing still."""
        other = self.candidate if side is self.reference else self.reference
        turn = Progress()
        other.worker.freeze()
        try:
            self.ready(side)
            turn.spent.append(self.timed(side, sets, single=False))
            after = self.afterwards(single=False)
            start = time.perf_counter()
            side.worker.freeze()
            after.settle(time.perf_counter() - start)
            turn.paces.append(self.pace())
            with after.timed():
                self.synchronize()
            side.worker.thaw()
            seconds, _ = side.collect([])
            after.end()
            turn.collected(seconds, after)
        finally:
            side.worker.thaw()
            other.worker.thaw()
        return turn.over()
