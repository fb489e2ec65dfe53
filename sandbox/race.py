"""A task's reference against itself, wrapped as a baseline or as it is, pair by pair."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sandbox.bare import BarePair
from sandbox.cleanup import on_failure
from sandbox.compiling import AHEAD, COMPILE_TIMEOUT_S, COMPILED, Compiling
from sandbox.device import free_bytes
from sandbox.handle import WorkerFailed
from sandbox.judge import MEMORY_TYPES
from sandbox.observation import Errors, RoundObservation
from sandbox.pair import ProcessPair
from sandbox.plan import Plan
from sandbox.stand import Stand
from sandbox.statistics import Null, settled
from sandbox.subject import SLOWLY_FREED_BYTES, Opening, Signature, Subject
from sandbox.types import EvalConfig, Task

logger = logging.getLogger(__name__)

TRUSTED = Errors(1.0, 1.0, 1e9)
"""Baselines are timed, not judged."""
BESIDE_BYTES = 1 << 30
"""Inputs and outputs of a call up to which workers are called once while others are timed, and wait
between races whatever a pair takes."""
WAITING_SHARE, PAIR_SHARE = 0.15, 0.65
"""Of free memory, the call and the pair up to which workers wait where calls are larger: their
contexts are some gigabytes, which the largest pairs need."""
AHEAD_SHARE, AHEAD_CALLS = 0.8, 2
"""Of free memory that a pair and what is compiled beside it may take, a call twice over each."""
KEPT_SHARE = 0.2
"""Of free memory that the pairs of a race may take for their references to serve the next race: a
plan fills the memory with a single pair."""
FREE_SHARE = 0.5
"""Of the memory that was free before a race: with less left, none of its references stays. What
their calls take besides outputs is in no plan."""
STAYING_BYTES = 1 << 30
"""Of parameters up to which a model stays on a GPU between races."""


def stays(task: Task, signature: Signature, room: int) -> bool:
    """Whether workers wait between races, without arenas, where so many bytes are free: CUDA
    contexts are made by turns, a quarter of a second each (H200). A process on the CPU is forked in
    no time, and what it did before shows in its heap.
    """
    call = signature.input_bytes + signature.output_bytes
    small = call <= max(BESIDE_BYTES, WAITING_SHARE * room)
    return task.device == "cuda" and small and signature.state_bytes <= STAYING_BYTES


class Races:
    """Of one task, one after the other: a figure needs pairs of fresh processes, while different
    figures may share theirs.
    """

    def __init__(
        self,
        stand: Stand,
        compiling: Compiling,
        task: Task,
        config: EvalConfig,
        signature: Signature,
        scheme: Plan,
        synchronize: Callable[[], None],
    ) -> None:
        self.stand = stand
        self.compiling = compiling
        self.task = task
        self.config = config
        self.signature = signature
        self.scheme = scheme
        self.lean = scheme.leaner(signature)
        """Of bare pairs."""
        self.synchronize = synchronize
        self.references: dict[int, Subject] = {}
        """By their pair; those of the race before serve the next."""
        call = signature.input_bytes + signature.output_bytes
        self.small = call <= BESIDE_BYTES
        self.room = free_bytes(task.device)
        one = scheme.bytes(signature) + 2 * signature.state_bytes
        fits = self.small or one <= PAIR_SHARE * self.room
        self.stays = stays(task, signature, self.room) and fits
        """Workers are opened while others are timed, and wait for the next race."""
        left = AHEAD_SHARE * self.room - one
        self.beside = math.inf if self.small else left // (AHEAD_CALLS * call)
        """So many workers may compile and call the model while a pair is timed."""
        self.alone: Callable[[], bool] = lambda: False
        """Ends what takes memory beside a pair; False where there is no such."""
        self.few = config.min_pairs * one <= KEPT_SHARE * self.room
        self.large = one > SLOWLY_FREED_BYTES
        """The end of what was timed is waited for before more memory is taken. Elsewhere only
        before something is timed."""

    def race(
        self,
        wrap: str | None,
        ready: deque[Subject],
        null: Null | None = None,
        *,
        bare: bool = True,
    ) -> list[RoundObservation]:
        """Rounds of `min_pairs` pairs of the reference and itself, wrapped as `wrap` says; with a
        `null` experiment a pair ends once its figure is settled. `bare`: they are calls alone.

        `ready`: workers of the wrapped one, which are used up.
        """
        try:
            return self._race(wrap, ready, null, bare=bare)
        except WorkerFailed as failed:
            if not (set(failed.failure.types) & MEMORY_TYPES and self.alone()):
                raise
            logger.info("once more, with nothing beside it: %s", failed)
        return self._race(wrap, ready, null, bare=bare)

    def _race(
        self, wrap: str | None, ready: deque[Subject], null: Null | None, *, bare: bool
    ) -> list[RoundObservation]:
        start = partial(self._start_pair, wrap, ready)
        rounds: list[RoundObservation] = []
        emptied: list[Subject] = []
        with ThreadPoolExecutor(1, "pair") as pool:
            coming = deque([pool.submit(start, 0)])
            try:
                for number in range(self.config.min_pairs):
                    rival = coming.popleft().result()
                    with on_failure(partial(self.stand.retire, rival)):
                        last = number + 1 == self.config.min_pairs
                        # The first one's compiled code serves the others, unless they have theirs.
                        serves = number == 0 and wrap in COMPILED and not ready
                        if serves and self._calls(wrap):
                            self.compiling.keep(rival, tuned=False)
                            serves = False
                        early = (self.small or self.stays) and not last and not serves
                        if early:
                            coming.append(pool.submit(start, number + 1))
                        if self.large:
                            self.stand.settle()
                        with on_failure(partial(self._drop, number)):
                            rounds += self._rounds(number, rival, wrap, null, bare)
                            self._clear(number)
                        if number == 0 and wrap in COMPILED:
                            self.compiling.keep(rival)
                    if self.stays and _lives(rival.release) and not self._filled():
                        emptied.append(rival)
                    else:
                        self.stand.retire(rival)
                    if not early and not last:
                        coming.append(pool.submit(start, number + 1))
            finally:
                for unused in coming:
                    if unused.exception() is None:
                        self.stand.retire(unused.result())
                # Not before: pairs of one figure share no process.
                for rival in emptied:
                    self.compiling.reuse(rival) if wrap in COMPILED else self.stand.reuse(rival)
        if self.large:
            self.stand.settle()
        return rounds

    def __enter__(self) -> Races:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        """End what is left, or let it serve other tasks."""
        for number in list(self.references):
            if failure is None and self.stays:
                self.stand.reuse(self.references.pop(number))
            else:
                self._drop(number)
        if failure is not None or self.large:
            self.stand.settle()

    def _clear(self, number: int) -> None:
        """A pair's reference gives its memory to the next pair, unless there is enough."""
        reference = self.references[number]
        stays = self.few or (self.stays and _lives(reference.rest))
        if not stays or self._filled():
            self._drop(number)

    def _filled(self) -> bool:
        return free_bytes(self.task.device) < FREE_SHARE * self.room

    def _drop(self, number: int) -> None:
        self.stand.retire(self.references.pop(number))

    def _rounds(
        self,
        number: int,
        rival: Subject,
        wrap: str | None,
        null: Null | None,
        bare: bool,
    ) -> list[RoundObservation]:
        """Of one pair."""
        bounds = [TRUSTED] * len(self.signature.outputs)
        reference = self.references[number]
        bare = bare and not self.signature.mutates
        pair = (BarePair if bare else partial(ProcessPair, judged=False))(
            number,
            reference,
            rival,
            self.signature,
            self.lean if bare else self.scheme,
            reference.config,
            self.synchronize,
            self.stand.quiet,
        )
        with self.stand.undisturbed():
            if wrap in COMPILED:
                self.compiling.tune(rival)
            pair.start(COMPILE_TIMEOUT_S)
            rounds: list[RoundObservation] = []

            def over() -> bool:
                return null is not None and settled(rounds, null, pair.config, judged=False)

            for seen, _ in pair.rounds(bounds, over):
                rounds.append(seen)
            return rounds

    def _start_pair(self, wrap: str | None, ready: deque[Subject], number: int) -> Subject:
        """The reference, unless it is there, and its rival, open and called once; while another
        pair is timed they stand still.
        """

        def rival() -> Subject:
            if ready:
                return ready.popleft()
            return self._compiled(wrap) if wrap in COMPILED else self._called(wrap)

        if number in self.references and not self.references[number].worker.living:
            self._drop(number)  # it died while it waited
        if number in self.references:
            return rival()
        self.references[number], found = self.stand.start_both(partial(self._called, None), rival)
        return found

    def _compiled(self, wrap: str | None) -> Subject:
        """A worker of a compiled model, called once where there is memory for that."""
        start = partial(self.compiling.start, self.task, self.config, self.signature, wrap)
        subject = start()
        if not self._calls(wrap):
            return subject
        try:
            with on_failure(partial(self.stand.retire, subject)):
                self.compiling.call(subject)
        except WorkerFailed as failed:
            if not set(failed.failure.types) & MEMORY_TYPES:
                raise
            logger.info("compiled in its pair: %s", failed)
            return start()
        return subject

    def _calls(self, wrap: str | None) -> bool:
        """Whether its workers compile beside others."""
        return wrap == AHEAD and self.beside > 0

    def _called(self, wrap: str | None) -> Subject:
        """A worker of the reference; on a GPU its first call loads code for a tenth of a second."""
        subject = self.stand.start_reference(self.task, self.config)
        ended = on_failure(partial(self.stand.retire, subject))
        with ended, self.stand.quiet.beside(subject.worker):
            self.stand.open_reference(subject, Opening(wrap=wrap, known=self.signature))
            if self.small and self.task.device == "cuda":
                subject.request("call", COMPILE_TIMEOUT_S, seed=0, tuned=True)
        return subject


def _lives(vacate: Callable[[], None]) -> bool:
    """Whether the worker gave its memory back: what it was timed for is known by then."""
    try:
        vacate()
    except WorkerFailed as failed:
        logger.info("a worker does not stay: %s", failed)
        return False
    return True
