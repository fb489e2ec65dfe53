"""Where the loop's work runs: lanes that measure, one candidate at a time, and builds.

`LocalEngine` keeps everything in this process; `agent.engines.ray_engine` spreads it over Ray. The
campaign decides *what* runs and when, so that both make the same decisions. Neither engine
journals.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Protocol

from agent.engines.lanes import LanePool, NoLane
from agent.types import Measured
from sandbox.errors import SandboxFault, WarpsmithError
from sandbox.machine.device import DeviceFacts
from sandbox.prepare import Figures
from sandbox.types import Candidate, EvalConfig, Evaluation, Evaluator, Status, Task

log = logging.getLogger(__name__)


class LaneEvaluator(Evaluator, Protocol):
    """An evaluator that can also check a task before any candidate of it runs."""

    def figures(self, task: Task, config: EvalConfig) -> object:
        """Validate the reference and time the baselines, where neither was done before; raises
        InvalidReference or TaskError.
        """
        ...


MakeEvaluator = Callable[[int], LaneEvaluator]
"""From the index of a device to its evaluator; picklable, called inside the lane."""
Build = Callable[[Candidate, EvalConfig, Task], object]
"""Compiles ahead into a cache in which the evaluator finds the result; picklable."""


class Engine(Protocol):
    name: str
    """As the user names it: `ray`, `local`."""

    @property
    def lanes(self) -> int: ...

    @property
    def depth(self) -> int:
        """Candidates that a lane takes at once: it loads the next ones while it times another."""
        ...

    def submit_prepare(self, task: Task, config: EvalConfig) -> Future[Measured]:
        """On a lane; raises InvalidReference, TaskError or DeviceError, SandboxFault for ours."""
        ...

    def submit_build(self, task: Task, candidate: Candidate, config: EvalConfig) -> Future[None]:
        """Off the lanes. A candidate that does not compile is told so by its evaluation."""
        ...

    def submit_evaluate(
        self,
        task: Task,
        candidate: Candidate,
        config: EvalConfig,
        to_beat: float | None,
        *,
        elsewhere: bool = False,
    ) -> Future[Evaluation]:
        """On a lane; our own faults come back as SANDBOX_ERROR.

        `elsewhere`: on another lane than before, where there is one: another device cannot repeat
        the first one's luck.
        """
        ...

    def abandon(self) -> bool:
        """End what is under way, which nobody awaits any more; False where that cannot be done, and
        it has to be awaited. Only `close` may follow.
        """
        ...

    def close(self) -> None: ...


class Lane(Protocol):
    """What jobs run on: one device, wherever it is."""

    def environment(self) -> Mapping[str, str]: ...

    def prepare(self, task: Task, config: EvalConfig) -> Measured: ...

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, to_beat: float | None
    ) -> Evaluation: ...

    def close(self) -> None: ...


class LaneEngine(ABC):
    """What engines share: jobs for lanes."""

    def __init__(
        self, name: str, openers: Sequence[Callable[[], Lane]], *, depth: int, builders: int
    ) -> None:
        self.name, self.lanes, self.depth = name, len(openers), depth
        self._pool = LanePool[Lane](f"{name}-lane", openers, depth=depth)
        self._builders = LanePool(f"{name}-build", [NoLane] * builders)

    def submit_environment(self) -> Future[Mapping[str, str]]:
        """Of a lane: what its figures depend on (sandbox/machine/device.py)."""
        return self._pool.submit(lambda lane: lane.environment())

    def submit_prepare(self, task: Task, config: EvalConfig) -> Future[Measured]:
        return self._pool.submit(lambda lane: lane.prepare(task, config), affinity=task.id)

    @abstractmethod
    def submit_build(self, task: Task, candidate: Candidate, config: EvalConfig) -> Future[None]:
        """As Engine's; where builds run is for each to say."""

    def submit_evaluate(
        self,
        task: Task,
        candidate: Candidate,
        config: EvalConfig,
        to_beat: float | None,
        *,
        elsewhere: bool = False,
    ) -> Future[Evaluation]:
        return self._pool.submit(
            lambda lane: lane.evaluate(task, candidate, config, to_beat),
            affinity=task.id,
            subject=candidate.id,
            elsewhere=elsewhere,
            fallback=partial(sandbox_error, candidate, config),
        )

    def abandon(self) -> bool:
        """No: a thread cannot be ended, and would disturb what this process measures next."""
        return False

    def close(self) -> None:
        self._builders.close(grace_s=1.0)
        self._pool.close()


class LocalEngine(LaneEngine):
    """The loop's work on this machine's threads; the evaluators start their own processes."""

    def __init__(
        self,
        make_evaluator: MakeEvaluator,
        build: Build | None = None,
        *,
        lanes: int = 1,
        depth: int = 1,
    ) -> None:
        openers = [partial(LocalLane.open, make_evaluator, i) for i in range(lanes)]
        super().__init__("local", openers, depth=depth, builders=os.cpu_count() or 1)
        self._build = build

    def submit_build(self, task: Task, candidate: Candidate, config: EvalConfig) -> Future[None]:
        return self._builders.submit(lambda _: build_with(self._build, task, candidate, config))


class LocalLane:
    """An evaluator in this process."""

    def __init__(self, evaluator: LaneEvaluator) -> None:
        self._evaluator = evaluator

    @classmethod
    def open(cls, make_evaluator: MakeEvaluator, index: int) -> LocalLane:
        return cls(make_evaluator(index))

    def environment(self) -> Mapping[str, str]:
        """Empty for evaluators that measure nothing."""
        facts = getattr(self._evaluator, "facts", None)
        return facts.environment if isinstance(facts, DeviceFacts) else {}

    def prepare(self, task: Task, config: EvalConfig) -> Measured:
        """Validates the task; of what the evaluator returns, the figures leave the lane."""
        fault = ""
        try:
            found = self._evaluator.figures(task, config)
        except WarpsmithError:
            raise
        except Exception as error:  # the pool's edge: one bad task must not end the campaign
            log.warning("preparing %s failed: %r", task.id, error, exc_info=True)
            fault = f"{task.id}: {error!r}"
        if fault:  # out here: the first exception's frames may hold gigabytes of cases
            raise SandboxFault(fault)
        return measured_of(found, getattr(self._evaluator, "facts", None))

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, to_beat: float | None
    ) -> Evaluation:
        """The pool's edge: our fault becomes a value; errors of the task or the device are
        raised.
        """
        try:
            return self._evaluator.evaluate(task, candidate, config, to_beat=to_beat)
        except Exception as error:  # the pool's edge: one bad evaluation must not end the campaign
            if isinstance(error, WarpsmithError) and not isinstance(error, SandboxFault):
                raise
            log.warning("evaluating %s failed: %r", candidate.id, error, exc_info=True)
            return sandbox_error(candidate, config, error, self.environment())

    def close(self) -> None:
        self._evaluator.close()


def measured_of(figures: object, facts: object) -> Measured:
    """What a LocalEvaluator measured; empty for evaluators that measure nothing."""
    found = Measured()
    if isinstance(figures, Figures):
        timed = [(b.name, b.latency_ms, b.speedup) for b in figures.baselines]
        eager = next((ms * s.value for _, ms, s in timed if ms is not None and s), None)
        floor_s = figures.floor_s
        found = Measured(
            eager_ms=eager,
            baselines_ms={name: ms for name, ms, _ in timed if ms is not None},
            timed=figures.baselines,
            estimate_ms=figures.latency_s * 1e3,
            floor_ms=None if floor_s is None else floor_s * 1e3,
            seconds=figures.seconds,
        )
    if isinstance(facts, DeviceFacts):
        found = replace(
            found,
            copy_bytes_s=facts.copy_bytes_s,
            matmul_flops=facts.matmul_flops,
            launch_s=facts.launch_s or None,
            cache_bytes=facts.cache_bytes,
        )
    return found


def build_with(build: Build | None, task: Task, candidate: Candidate, config: EvalConfig) -> None:
    """Fill the build cache, if there is anything to fill it with; what goes wrong there that is
    not told is a fault of ours.
    """
    try:
        if build is not None:
            build(candidate, config, task)
    except WarpsmithError:
        raise
    except Exception as error:  # one build that fails must not end the campaign
        raise SandboxFault(f"building {candidate.id}: {error!r}") from error


def sandbox_error(
    candidate: Candidate,
    config: EvalConfig,
    error: Exception,
    environment: Mapping[str, str] | None = None,
) -> Evaluation:
    """An evaluation that says nothing about the candidate, of a lane in such an environment; None
    where it is lost.
    """
    detail = str(error) if isinstance(error, WarpsmithError) else repr(error)
    return Evaluation(
        candidate.task_id,
        candidate.id,
        config.id,
        Status.SANDBOX_ERROR,
        detail=detail,
        environment=environment or {},
    )
