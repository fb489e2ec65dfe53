"""Baselines beside eager: rounds that are their calls alone.

All sides are ours, so that nothing of a round is checked: inputs keep their values, outputs are
let go of rather than handed over, parameters stay. A call meets what it meets in other rounds:
values written to its memory just before "go", after warm-up on other sets; where calls are large,
one set serves all. All the rest took 80 of 130 ms of a round of one reduction (H100). The null
experiment has whole rounds where candidates are to come, since it tells what theirs scatter.

A reference is timed once a round for all its rivals: each of these figures is a ratio to the same
batch of it, which makes them no less true, though not independent of each other.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sandbox.judging.statistics import full_rounds
from sandbox.machine.handle import WorkerFailed
from sandbox.observation import RoundObservation
from sandbox.pairs.pair import ProcessPair
from sandbox.pairs.rounds import MET_BY
from sandbox.pairs.turn import Progress, Turn
from sandbox.subjects.subject import Subject

DEVICE_UNTIMED = 1
"""Batches of a side before its first timed one on a GPU, where outputs have their memory from the
start, and no heap is to grow."""


class RivalFailed(WorkerFailed):
    """Which of a group's rivals failed."""

    def __init__(self, rival: Subject, failed: WorkerFailed) -> None:
        super().__init__(failed.failure)
        self.rival = rival


@contextlib.contextmanager
def blamed(rival: Subject) -> Iterator[None]:
    """A block that asks something of one rival, or of the reference for its sake."""
    try:
        yield
    except WorkerFailed as failed:
        raise RivalFailed(rival, failed) from failed


class BarePair(ProcessPair):
    """A reference that does not change its inputs, and one of its rivals."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, judged=False)
        if self.reference.task.device == "cuda":
            self.plan = replace(self.plan, untimed=min(DEVICE_UNTIMED, self.plan.untimed))
        self.keep = None
        self.follows = False
        """Another pair of the same reference, for which that was timed alone."""

    def time_alone(self) -> None:
        if not self.follows:
            super().time_alone()

    def disclose(self, side: Subject, first: int, count: int) -> float | None:
        if not self.plan.lean:
            self.given.write(side, first, count)
        return None

    def turn(self, side: Subject, sets: list[int]) -> Turn:
        """Of a side that stands still before and after."""
        turn = Progress()
        side.worker.thaw()
        try:
            self.ready(side)
            turn.spent.append(self.timed(side, sets, single=False))
            after = self.afterwards(single=False)
            after.settle(freeze_s=0.0)
            turn.paces.append(self.pace())
            seconds, _ = side.collect([])
            after.end()
            turn.collected(seconds, after)
        finally:
            side.worker.freeze()
        return turn.over()


class BareGroup:
    """One reference and its rivals, of which one runs and all others stand still."""

    def __init__(
        self, number: int, reference: Subject, rivals: Sequence[Subject], *shared: Any
    ) -> None:
        """`shared`: what is behind the two sides of a pair."""
        self.reference = reference
        self.pairs = {rival: BarePair(number, reference, rival, *shared) for rival in rivals}
        self.any = self.pairs[rivals[0]]
        self.secret = random.Random(secrets.randbits(64))

    def start(self, first_call_timeout_s: float) -> None:
        """As a pair's, of one after the other; raises RivalFailed."""
        for rival, pair in self.pairs.items():
            pair.follows = pair is not self.any
            with blamed(rival):
                pair.start(first_call_timeout_s)
            rival.worker.freeze()

    def rounds(
        self, settled: Callable[[Subject], bool] = lambda _: False
    ) -> Iterator[tuple[Subject, RoundObservation]]:
        """What each rival's batches were. One whose figure is `settled` is in no further round; a
        void one is made up for, as often as there are rounds. Raises RivalFailed.
        """
        full = full_rounds(self.any.config)
        valid: Counter[Subject] = Counter()
        sides = [self.reference, *self.pairs]
        try:
            for side in sides:
                side.worker.freeze()
            for number in range(2 * full):
                early = number >= MET_BY
                left = [
                    rival
                    for rival in self.pairs
                    if valid[rival] < full and not (early and settled(rival))
                ]
                if not left:
                    return
                for rival, seen in self._round(left).items():
                    valid[rival] += not seen.void
                    yield rival, seen
        finally:
            for side in sides:
                side.worker.thaw()

    def _round(self, rivals: Sequence[Subject]) -> dict[Subject, RoundObservation]:
        sets = list(range(self.any.plan.sets))
        self.secret.shuffle(sets)
        sets *= self.any.plan.repeats
        order = [self.reference, *rivals]
        self.secret.shuffle(order)
        turns = dict[Subject, Turn]()
        with self.any.silence():
            for side in order:
                pair = self.pairs.get(side, self.any)
                with contextlib.nullcontext() if side is self.reference else blamed(side):
                    turns[side] = pair.turn(side, sets)
        mine = turns[self.reference]
        return {
            rival: self.pairs[rival].observed(mine, turns[rival], len(sets), single=False)
            for rival in rivals
        }
