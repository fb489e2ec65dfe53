"""Engines that do not run: one for a campaign with nothing to do, one not started yet."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from agent.engines.engine import Engine
from agent.types import Measured
from sandbox.types import Candidate, EvalConfig, Evaluation, Task


class Deferred:
    """Starts an engine, which takes Ray seconds, when it is first asked for anything."""

    def __init__(self, name: str, start: Callable[[], Engine]) -> None:
        self.name = name
        self._start = start
        self.started: Engine | None = None

    @property
    def lanes(self) -> int:
        return self._engine.lanes

    @property
    def depth(self) -> int:
        return self._engine.depth

    def submit_prepare(self, task: Task, config: EvalConfig) -> Future[Measured]:
        return self._engine.submit_prepare(task, config)

    def submit_build(self, task: Task, candidate: Candidate, config: EvalConfig) -> Future[None]:
        return self._engine.submit_build(task, candidate, config)

    def submit_evaluate(
        self,
        task: Task,
        candidate: Candidate,
        config: EvalConfig,
        to_beat: float | None,
        *,
        elsewhere: bool = False,
    ) -> Future[Evaluation]:
        return self._engine.submit_evaluate(task, candidate, config, to_beat, elsewhere=elsewhere)

    def abandon(self) -> bool:
        return self._engine.abandon()

    def close(self) -> None:
        if self.started is not None:
            self.started.close()

    @property
    def _engine(self) -> Engine:
        if self.started is None:
            self.started = self._start()
        return self.started


class Idle(Deferred):
    """For a campaign that submits nothing."""

    lanes = 1
    depth = 1

    def __init__(self, name: str) -> None:
        super().__init__(name, _refuse)


def _refuse() -> Engine:
    raise AssertionError("a campaign with nothing left to do has submitted a job")
