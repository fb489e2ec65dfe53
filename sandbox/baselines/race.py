"""A task's reference against itself, wrapped as baselines or as it is, pair by pair: a reference
and one rival, or all rivals that fit.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from sandbox.baselines.bare import BareGroup, RivalFailed, blamed
from sandbox.baselines.compiling import AHEAD, COMPILE_TIMEOUT_S, COMPILED, Compiling
from sandbox.baselines.race_room import FREE_SHARE, Room
from sandbox.baselines.rival import Rival, null_of
from sandbox.cleanup import on_failure
from sandbox.judging.judge import MEMORY_TYPES
from sandbox.judging.statistics import Null, settled
from sandbox.machine.device import free_bytes
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.memory import OutOfMemoryError
from sandbox.observation import Errors, RoundObservation
from sandbox.pairs.pair import ProcessPair
from sandbox.subjects.plan import Plan
from sandbox.subjects.signature import Opening, Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig, Task

logger = logging.getLogger(__name__)

TRUSTED = Errors(1.0, 1.0, 1e9)
"""Baselines are timed, not judged."""


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
        sides: int = 2,
    ) -> None:
        """`sides`: so many are timed at once."""
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
        self.room = Room.of(task, config, signature, scheme, sides)
        self.alone: Callable[[], bool] = lambda: False
        """Ends what takes memory beside a pair; False where there is no such."""

    def race(
        self,
        wrap: str | None,
        ready: deque[Subject],
        null: Null | None = None,
        *,
        bare: bool = True,
    ) -> list[RoundObservation]:
        """Rounds of `min_pairs` pairs of the reference and itself, wrapped as `wrap` says; with a
        `null` experiment a pair ends once its figure is settled, and a baseline that was disturbed
        has more of them. `bare`: they are calls alone.

        `ready`: workers of the wrapped one, which are used up.
        """
        rival = Rival(wrap, self.config, ready)
        try:
            self._raced(rival, null, bare=bare)
        except WorkerFailed as failed:
            if not (set(failed.failure.types) & MEMORY_TYPES and self.alone()):
                raise
            logger.info("once more, with nothing beside it: %s", failed)
            rival = Rival(wrap, self.config, ready)
            self._raced(rival, null, bare=bare)
        return rival.rounds

    def narrow(self, rivals: Sequence[Rival], null: Null, *, bare: bool = True) -> None:
        """More pairs of fresh processes of those whose figure is a disturbed one's, at most as many
        as they had. They are spared where one fails.
        """
        fewest = self.config.min_pairs
        for number in range(fewest, 2 * fewest):
            loud = [rival for rival in rivals if rival.disturbed(null, self.config)]
            if not loud:
                break
            for rival in loud:
                rival.left.add(number)
            try:
                self._race(loud, lambda: null, bare=bare)
            except (WorkerFailed, OutOfMemoryError, torch.OutOfMemoryError) as failed:
                logger.info("figures stay as they are: %s", failed)
                break
            finally:
                for rival in loud:
                    rival.left.clear()
                    rival.failed = None  # what it had stands

    def _raced(self, rival: Rival, null: Null | None, *, bare: bool) -> None:
        try:
            self._race([rival], lambda: null, bare=bare)
            if rival.wrap is not None and null is not None:
                self.narrow([rival], null, bare=bare)
        finally:
            self.dismiss(rival)
        if rival.failed is not None:
            raise rival.failed

    def together(self, rivals: Sequence[Rival], null: Null | None) -> None:
        """Rounds in which the reference is timed once for all of them, as far as they have pairs
        left. Where the `null` experiment is not known, the reference is among them, and tells it
        pair by pair. Raises WorkerFailed where the reference fails.

        Their processes are to be dismissed.
        """

        def known() -> Null | None:
            again = next((rival for rival in rivals if rival.wrap is None), None)
            return null if again is None else null_of(again.rounds)

        self._race(rivals, known, bare=True)

    def dismiss(self, rival: Rival) -> None:
        """Its processes may serve other figures, now that it needs no further one: pairs of one
        figure share none.
        """
        while rival.spent:
            again = self.compiling if rival.wrap in COMPILED else self.stand
            again.reuse(rival.spent.pop())

    def _race(
        self, rivals: Sequence[Rival], known: Callable[[], Null | None], *, bare: bool
    ) -> None:
        numbers = sorted(set[int]().union(*(rival.left for rival in rivals)))
        with ThreadPoolExecutor(1, "pair") as pool:
            coming = deque([pool.submit(self._start, rivals, numbers[0])])
            try:
                for number, after in zip(numbers, [*numbers[1:], None], strict=True):
                    group = coming.popleft().result()
                    with on_failure(partial(self._retire, group)):
                        self._end_failed(group)
                        if all(rival.failed is not None for rival in rivals):
                            break
                        for rival in rivals:
                            if rival.waits and rival.wants(number) and rival.ready:
                                group[rival] = rival.ready.popleft()
                        early = self.room.small or self.room.stays
                        for rival, subject in group.items():
                            # The first one's compiled code serves the others, unless they have
                            # theirs.
                            serves = rival.first and rival.wrap in COMPILED and not rival.ready
                            if serves and not rival.waits and self._calls(rival.wrap):
                                self.compiling.keep(subject, tuned=False)
                            elif serves and not rival.waits:
                                early = False
                        if early and after is not None:
                            coming.append(pool.submit(self._start, rivals, after))
                        if self.room.large:
                            self.stand.settle()
                        self._timed(number, group, known, bare)
                        if number in self.references:
                            self._clear(number)
                    self._leave(group)
                    if not early and after is not None:
                        coming.append(pool.submit(self._start, rivals, after))
            finally:
                for unused in coming:
                    if unused.exception() is None:
                        self._retire(unused.result())
        if self.room.large:
            self.stand.settle()

    def _timed(
        self,
        number: int,
        group: dict[Rival, Subject],
        known: Callable[[], Null | None],
        bare: bool,
    ) -> None:
        """Rounds of the reference and this group; where a rival fails, once more without it."""
        while group:
            try:
                with on_failure(partial(self._drop, number)):
                    found = self._rounds(number, group, known(), bare)
            except RivalFailed as failed:
                guilty = next(rival for rival, one in group.items() if one is failed.rival)
                if guilty.wrap is None or len(group) == 1:
                    raise
                logger.info("%s is timed no more: %s", guilty.wrap, failed)
                guilty.failed = failed
                others = [rival for rival in group if rival is not guilty]
                self._retire(group)
                group.clear()
                group.update(self._start(others, number))
                continue
            for rival, subject in group.items():
                rival.rounds += found[rival]
                rival.left.remove(number)
                if rival.first and rival.wrap in COMPILED:
                    self.compiling.keep(subject)
                rival.first = False
            return

    def _end_failed(self, group: dict[Rival, Subject]) -> None:
        """Workers that were opened before it was known that their rival fails."""
        for rival in [one for one in group if one.failed is not None]:
            self.stand.retire(group.pop(rival))

    def _leave(self, group: dict[Rival, Subject]) -> None:
        """Rivals give their memory back."""
        with on_failure(partial(self._retire, group)):
            while group:
                rival, subject = group.popitem()
                with on_failure(partial(self.stand.retire, subject)):
                    stays = self.room.stays and _lives(subject.release) and not self._filled()
                rival.spent.append(subject) if stays else self.stand.retire(subject)

    def _retire(self, group: Mapping[Rival, Subject]) -> None:
        for subject in group.values():
            self.stand.retire(subject)

    def __enter__(self) -> Races:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        """End what is left, or let it serve other tasks."""
        for number in list(self.references):
            if failure is None and self.room.stays:
                self.stand.reuse(self.references.pop(number))
            else:
                self._drop(number)
        if failure is not None or self.room.large:
            self.stand.settle()

    def _clear(self, number: int) -> None:
        """A pair's reference gives its memory to the next pair, unless there is enough."""
        reference = self.references[number]
        stays = self.room.few or (self.room.stays and _lives(reference.rest))
        if not stays or self._filled():
            self._drop(number)

    def _filled(self) -> bool:
        return free_bytes(self.task.device) < FREE_SHARE * self.room.free

    def _drop(self, number: int) -> None:
        self.stand.retire(self.references.pop(number))

    def _rounds(
        self,
        number: int,
        group: Mapping[Rival, Subject],
        null: Null | None,
        bare: bool,
    ) -> dict[Rival, list[RoundObservation]]:
        """Of one pair, or of one group of those that share a reference."""
        reference = self.references[number]
        shared = (reference.config, self.synchronize, self.stand.quiet)
        found: dict[Rival, list[RoundObservation]] = {rival: [] for rival in group}
        whose = {subject: rival for rival, subject in group.items()}

        def over(subject: Subject) -> bool:
            rounds = found[whose[subject]]
            return null is not None and settled(rounds, null, reference.config, judged=False)

        with self.stand.undisturbed():
            for rival, subject in group.items():
                if rival.wrap in COMPILED:
                    with blamed(subject):
                        self.compiling.tune(subject)
            if bare and not self.signature.mutates:
                several = BareGroup(
                    number, reference, list(whose), self.signature, self.lean, *shared
                )
                several.start(COMPILE_TIMEOUT_S)
                for subject, seen in several.rounds(over):
                    found[whose[subject]].append(seen)
                return found
            (subject,) = whose
            pair = ProcessPair(
                number, reference, subject, self.signature, self.scheme, *shared, judged=False
            )
            pair.start(COMPILE_TIMEOUT_S)
            bounds = [TRUSTED] * len(self.signature.outputs)
            for seen, _ in pair.rounds(bounds, partial(over, subject)):
                found[whose[subject]].append(seen)
            return found

    def _start(self, rivals: Sequence[Rival], number: int) -> dict[Rival, Subject]:
        """The reference, unless it is there, and its rivals, open and called once; while others are
        timed they stand still. A rival that fails is left out; raises WorkerFailed where that is
        the reference itself.
        """
        if number in self.references and not self.references[number].worker.living:
            self._drop(number)  # it died while it waited
        wanted = [rival for rival in rivals if rival.wants(number) and not rival.waits]
        group = dict[Rival, Subject]()
        with ThreadPoolExecutor(len(rivals), "starter") as pool:
            coming = {rival: pool.submit(self._opened, rival) for rival in wanted}
            with on_failure(partial(self._retire_results, coming)):
                if number not in self.references:
                    self.references[number] = self._called(None)
                for rival, started in coming.items():
                    try:
                        group[rival] = started.result()
                    except WorkerFailed as failed:
                        if rival.wrap is None:
                            raise
                        rival.failed = failed
        return group

    def _retire_results(self, coming: Mapping[Rival, Future[Subject]]) -> None:
        for started in coming.values():
            if started.exception() is None:
                self.stand.retire(started.result())

    def _opened(self, rival: Rival) -> Subject:
        if rival.ready:
            return rival.ready.popleft()
        wrap = rival.wrap
        return self._compiled(wrap) if wrap in COMPILED else self._called(wrap)

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
        return wrap == AHEAD and self.room.beside > 0

    def _called(self, wrap: str | None) -> Subject:
        """A worker of the reference; on a GPU its first call loads code for a tenth of a second."""
        subject = self.stand.start_reference(self.task, self.config)
        ended = on_failure(partial(self.stand.retire, subject))
        with ended, self.stand.quiet.beside(subject.worker):
            self.stand.open_reference(subject, Opening(wrap=wrap, known=self.signature))
            if self.room.small and self.task.device == "cuda":
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
