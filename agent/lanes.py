"""A pool of lanes: each is one thread that owns one thing (an evaluator, a remote actor, nothing).

A lane that is lost takes its job back to the queue, to be run by another lane; after `MAX_LOST`
lost lanes the job's fallback is its result. Threads are daemons: a process that is told to end does
not wait for a lane that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sandbox.errors import WarpsmithError

log = logging.getLogger(__name__)

MAX_LOST = 3
"""Lanes one job may lose: by the third it is more likely the cause than the victim."""


class LaneLost(WarpsmithError):
    """The process or node behind a lane is gone; what it was doing may be done again elsewhere."""


class NoLaneLeft(WarpsmithError):
    """Every lane is lost or could not be opened; the campaign cannot go on."""


class Closable(Protocol):
    def close(self) -> None: ...


L = TypeVar("L", bound=Closable)
R = TypeVar("R")


@dataclass
class _Job(Generic[L]):
    call: Callable[[L], Any]
    future: Future[Any]
    affinity: str
    fallback: Callable[[LaneLost], Any] | None
    lost: int = 0


class NoLane:
    """For pools whose lanes are only threads."""

    def close(self) -> None:
        """There is nothing to close."""


class LanePool(Generic[L]):
    """Runs jobs oldest first, but a lane prefers the task whose reference it keeps warm."""

    def __init__(self, name: str, openers: Sequence[Callable[[], L]]) -> None:
        self._jobs: list[_Job[L]] = []
        self._wake = threading.Condition()
        self._closed = False
        self._failure: WarpsmithError | None = None
        self._open_lanes = len(openers)
        self._threads = [
            threading.Thread(target=self._serve, args=(opener,), name=f"{name}-{i}", daemon=True)
            for i, opener in enumerate(openers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        call: Callable[[L], R],
        *,
        affinity: str = "",
        fallback: Callable[[LaneLost], R] | None = None,
    ) -> Future[R]:
        """`call(lane)` on some lane; the future raises what it raises, or NoLaneLeft."""
        job = _Job(call, Future[R](), affinity, fallback)
        with self._wake:
            if self._closed or self._failure is not None:
                job.future.set_exception(self._failure or NoLaneLeft("the engine is closed"))
            else:
                self._jobs.append(job)
                self._wake.notify()
        return job.future

    def close(self, grace_s: float = 5.0) -> None:
        """Drop jobs that have not begun, close idle lanes, wait a little for busy ones."""
        with self._wake:
            self._closed = True
            for job in self._jobs:
                job.future.cancel()
            self._jobs.clear()
            self._wake.notify_all()
        deadline = time.monotonic() + grace_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, opener: Callable[[], L]) -> None:
        while True:
            try:
                lane = opener()
            except Exception as error:  # noqa: BLE001 (a thread's end: the pool must hear of it)
                self._give_up(error)
                return
            if not self._work(lane):
                lane.close()
                return

    def _work(self, lane: L) -> bool:
        """Run jobs until the pool is closed; True if the lane was lost instead."""
        warm = ""
        while (job := self._take(warm)) is not None:
            warm = job.affinity
            try:
                result = job.call(lane)
            except LaneLost as error:
                self._return(job, error)
                return True
            except Exception as error:  # noqa: BLE001 (it belongs to whoever holds the future)
                job.future.set_exception(error)
            else:
                job.future.set_result(result)
        return False

    def _take(self, warm: str) -> _Job[L] | None:
        with self._wake:
            while True:
                while not self._jobs and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return None
                job = next((j for j in self._jobs if j.affinity == warm), self._jobs[0])
                self._jobs.remove(job)
                if job.lost or job.future.set_running_or_notify_cancel():
                    return job

    def _return(self, job: _Job[L], error: LaneLost) -> None:
        job.lost += 1
        log.warning("lane lost (%d of %d for this job): %s", job.lost, MAX_LOST, error)
        with self._wake:
            if job.lost < MAX_LOST and not self._closed:
                self._jobs.insert(0, job)
                self._wake.notify()
                return
        if job.fallback is not None:
            job.future.set_result(job.fallback(error))
        else:
            job.future.set_exception(error)

    def _give_up(self, error: Exception) -> None:
        """A lane that cannot be opened (again): the others go on; the last one fails the rest."""
        log.warning("a lane could not be opened: %s", error)
        with self._wake:
            self._open_lanes -= 1
            if self._open_lanes:
                return
            if isinstance(error, WarpsmithError) and not isinstance(error, LaneLost):
                self._failure = error
            else:
                self._failure = NoLaneLeft(f"no lane is left to measure on: {error}")
            jobs, self._jobs = self._jobs, []
        for job in jobs:
            if job.lost or job.future.set_running_or_notify_cancel():
                job.future.set_exception(self._failure)
