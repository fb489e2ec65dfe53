"""Kernels that are there already, through an engine: built ahead, in waves of tasks, as they end.

Cheap checks go first: candidates are verified, and null experiment and baselines, which take ten
times as long on a GPU, are timed for those tasks alone that one of them solves. A task is prepared
with no candidate alive, while candidates are loaded beside what is timed. One by one, each would
wait for the other; so every lane verifies a wave of tasks, prepares them, and then times what is
right, while the next wave's candidates are built. What preparing told lies on disk: nothing of it
is lost where the time ends in the midst of a wave.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from agent.engines.engine import Engine
from agent.engines.lanes import NoLaneLeft
from agent.types import Measured
from sandbox.errors import DeviceError, WarpsmithError
from sandbox.machine.quiet import BEGUN
from sandbox.types import EvalConfig, Evaluation, Request, Status, Task

WAVE = 16
"""Tasks of a lane: their secret cases stay until their candidates are timed."""
POLL_S = 0.2
"""How soon an interrupt is noticed."""

Of = TypeVar("Of", bound=Hashable)


@dataclass
class EngineJudge:
    """`over` tells that nothing more is to begin."""

    engine: Engine
    over: Callable[[], bool] = lambda: False
    on_prepared: Callable[[Task, Measured | WarpsmithError, int], None] = lambda _, __, ___: None
    """Gets each task of a wave with what preparing told, and how many are left of the wave."""

    def prepare_many(
        self, tasks: Sequence[Task], config: EvalConfig
    ) -> Iterator[tuple[Task, Measured | WarpsmithError]]:
        """In the order in which they end: what preparing told, or why it did not.

        Raises NoLaneLeft or DeviceError where no lane is left to go on with.
        """
        by_hash = {task.hash: task for task in tasks}
        starts = {
            key: partial(self.engine.submit_prepare, task, config) for key, task in by_hash.items()
        }
        # Those that a lane begins beside the one it times are to be there.
        for key, future in self._ended(starts, (1 + BEGUN) * self.engine.lanes):
            try:
                found: Measured | WarpsmithError = future.result()
            except (NoLaneLeft, DeviceError):
                raise
            except WarpsmithError as error:
                found = error
            yield by_hash[key], found

    def evaluate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, Evaluation]]:
        """Each with its place among the requests, in the order in which they end.

        Raises NoLaneLeft or DeviceError where no lane is left to go on with.
        """
        waves = _waves(requests, WAVE * self.engine.lanes)
        built: dict[int, Future[None]] = {}
        for number, wave in enumerate(waves):
            for place in (place for each in waves[number : number + 2] for place in each):
                one = requests[place]
                # On the CPU the lane builds: only there a build can stand still in timed regions.
                ahead = one.candidate.language.needs_build and one.task.device != "cpu"
                if ahead and place not in built and not self.over():
                    built[place] = self.engine.submit_build(one.task, one.candidate, one.config)
            yield from self._evaluated(requests, wave, built)

    def _evaluated(
        self, requests: Sequence[Request], wave: Sequence[int], built: Mapping[int, Future[None]]
    ) -> Iterator[tuple[int, Evaluation]]:
        """Of one wave, the failures first. A reference that cannot be scored, and a build that
        failed, are told by evaluations.
        """
        # What is still being built goes last.
        order = sorted(wave, key=lambda place: place in built and not built[place].done())
        right = []
        for place, found in self._judged({place: _verified(requests[place]) for place in order}):
            if found.passed or found.status is Status.SANDBOX_ERROR:
                right.append(place)
            else:
                yield place, replace(found, config_id=requests[place].config.id)
        tasks = {requests[place].task.hash: requests[place].task for place in right}
        if not tasks:
            return
        done = self.prepare_many(list(tasks.values()), requests[wave[0]].config)
        for number, (task, told) in enumerate(done, 1):
            self.on_prepared(task, told, len(tasks) - number)
        yield from self._judged({place: requests[place] for place in right})

    def _judged(self, requests: Mapping[int, Request]) -> Iterator[tuple[int, Evaluation]]:
        starts = {place: partial(self._submitted, one) for place, one in requests.items()}
        for place, future in self._ended(starts, self.engine.lanes * (self.engine.depth + 1)):
            yield place, future.result()

    def _submitted(self, request: Request) -> Future[Evaluation]:
        return self.engine.submit_evaluate(
            request.task, request.candidate, request.config, request.to_beat
        )

    def _ended(
        self, starts: Mapping[Of, Callable[[], Future[Any]]], at_once: int
    ) -> Iterator[tuple[Of, Future[Any]]]:
        """Each key with its future once that has ended; so many are under way at once. Once it is
        over, those that no lane has begun are none of them.
        """
        waiting, under_way = list(starts)[::-1], dict[Future[Any], Of]()
        while True:
            while waiting and len(under_way) < at_once and not self.over():
                key = waiting.pop()
                under_way[starts[key]()] = key
            if self.over():
                under_way = {one: key for one, key in under_way.items() if not one.cancel()}
            if not under_way:
                return
            done, _ = wait(under_way, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in [one for one in under_way if one in done]:
                yield under_way.pop(future), future


def _verified(request: Request) -> Request:
    """The same, with nothing timed."""
    return replace(request, config=replace(request.config, verify_only=True))


def _waves(requests: Sequence[Request], tasks: int) -> list[list[int]]:
    """Places of the requests, so many tasks at a time; a task is in one wave."""
    by_task: dict[str, list[int]] = {}
    for place, request in enumerate(requests):
        by_task.setdefault(request.task.hash, []).append(place)
    groups = list(by_task.values())
    starts = range(0, len(groups), tasks)
    return [[p for group in groups[start : start + tasks] for p in group] for start in starts]
