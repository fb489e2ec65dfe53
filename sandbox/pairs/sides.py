"""The two workers of a process pair, and how a batch or a lone call of either is timed: warmed up,
in silence, from "go" to "done", with the harness's own round trip off (docs/measuring.md).
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator

from sandbox.judging.drift import SHORT_CALL_S, Alone
from sandbox.machine.quiet import Quiet
from sandbox.machine.rest import Afterwards, probe_of
from sandbox.pairs.given import Given
from sandbox.pairs.turn import span
from sandbox.subjects.plan import Plan
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig

RUNG_BYTES = 16 << 20
"""Of one input set, up to which lone calls are rung for: making it out is timed with them."""
LATE_LOOKS = 10
"""At inputs that a GPU may still be writing: each waits for it, up to 0.1 s."""


class Sides:
    """A reference and a candidate on equal inputs."""

    def __init__(
        self,
        reference: Subject,
        candidate: Subject,
        signature: Signature,
        plan: Plan,
        config: EvalConfig,
        synchronize: Callable[[], None],
        quiet: Quiet,
        *,
        new_weights: bool,
        strict: bool,
    ) -> None:
        """`new_weights`: parameters may be overwritten. `strict`: whatever is built for other
        candidates stands still in timed regions too.
        """
        self.reference = reference
        self.candidate = candidate
        self.signature = signature
        self.plan = plan
        self.config = config
        self.synchronize = synchronize
        self.quiet = quiet
        self.strict = strict
        self.given = Given(
            reference, candidate, signature, config, synchronize, new_weights=new_weights
        )
        # The supervisor waits awake: without a core of its own it would take one from the work.
        # And while a worker stands by it makes as many calls as there is time for.
        self.rung = (
            reference.worker.core is not None
            and signature.input_bytes <= RUNG_BYTES
            and not signature.moves_state
        )
        """Lone calls begin by a bell instead of the pipe."""
        self.probe = probe_of(reference.task.device)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """A region in which nothing of ours runs but what is timed, and we keep off its core."""
        core = self.reference.worker.core
        aside = contextlib.nullcontext() if core is None else core.left_alone()
        with self.quiet.timed(strict=self.strict), aside:
            self.until_idle()  # of what a worker that stands still had queued
            yield

    def alone(self) -> Alone:
        """One batch of the reference, with the candidate stopped."""
        self.reference.warm(self.plan.warm_sets)
        since = self.disclose(self.reference, 0, self.plan.sets)  # as cold as in the rounds
        seconds = self.batch(self.reference, self.plan.timed, since=since)
        return Alone(self.net(self.reference, seconds) / len(self.plan.timed), self.pace())

    def disclose(self, side: Subject, first: int, count: int) -> float | None:
        """Write the sets that are timed next, but for those that no cache holds and both have.
        Returns when the side could begin on them, None where it waits for "go".
        """
        return None if self.plan.lean else self.given.disclose(side, first, count)

    def batch(
        self, side: Subject, sets: list[int], *, single: bool = False, since: float | None = None
    ) -> float:
        """Seconds of calls on these sets, `since` their inputs were there, else since "go"; those
        of a batch wait for a GPU's turn to the side.
        """
        turned = self.probe is not None and not single
        return side.go(sets, drops=self.plan.lean, turned=turned, since=since)

    @property
    def overhead_s(self) -> float:
        """Seconds of a batch that are the harness's own: the reference's worker, which is trusted,
        tells how long its calls took. They were 0.6 ms on two cores and on an H200, where a batch
        without calls, for which nobody has to wake up, took 0.1 and 0.3 ms.
        """
        return statistics.median(self.reference.beyond)

    def pace(self, single: bool = False) -> float:
        """How slow the launching core is now; 1.0 where calls are not bound by it: long ones, and
        lone ones through the pipe.
        """
        core = self.reference.worker.core
        bound = self.signature.latency_s <= SHORT_CALL_S and (self.rung or not single)
        return core.pace() if core is not None and bound else 1.0

    def until_idle(self) -> None:
        """Of a GPU, whatever a worker said."""
        if self.probe is not None:
            self.probe.until_idle()

    def came_late(self, batch: list[int]) -> bool:
        """Whether inputs that a rung call made out for itself are right once the GPU is idle."""
        if not self.rung or self.probe is None:
            return False
        for _ in range(LATE_LOOKS):
            self.probe.until_idle()
            if self.given.unchanged(*span(batch)):
                return True
        return False

    def afterwards(self, single: bool) -> Afterwards:
        """The clock behind "done", of batches alone: it tells no less than some 0.1 ms."""
        return Afterwards(None if single else self.probe)

    def timed(self, side: Subject, sets: list[int], single: bool) -> float:
        """Seconds of a batch without the harness's round trip, or of a lone call with it."""
        if single and self.rung:
            values = self.reference.set_bytes("inputs", sets[0])
            return side.ring(sets[0], self.plan.warm_sets[0], values)
        if single:
            side.rouse(self.plan.warm_sets[0])
        since = self.disclose(side, *span(sets))
        seconds = self.batch(side, sets, single=single, since=since)
        return seconds if single else self.net(side, seconds)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The candidate's whole process tree stands still."""
        self.candidate.worker.freeze()
        try:
            yield
        finally:
            self.candidate.worker.thaw()

    def ready(self, side: Subject) -> None:
        """Warm up on other sets; restore the state that calls would move."""
        side.idle.end()
        side.warm(self.plan.warm_sets)
        if self.signature.moves_state:
            side.restate(side.awake_s)
        self.synchronize()

    def net(self, side: Subject, seconds: float) -> float:
        """Seconds of the side's last batch without what is the harness's own, of which at most half
        is taken off: on a busy machine that can outlast a short batch, whose speed is then unknown,
        not infinite.
        """
        if side is self.reference:
            side.beyond.append(side.last_beyond_s)
        return max(seconds - self.overhead_s, seconds / 2)
