"""A pool of lanes: each owns one thing (an evaluator, a remote actor, nothing) for its threads.

A lane holds as many jobs as it has threads (`depth`), so that an evaluator can load candidates
while it times another. A lane that is lost takes its jobs back to the queue, to be run by another
lane, each with none beside it; after `MAX_LOST` lost lanes the job's fallback is its result.
Threads are daemons: a process that is told to end does not wait for a lane that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sandbox.errors import WarpsmithError

log = logging.getLogger(__name__)

MAX_LOST = 3
"""Lanes one job may lose: by the third it is more likely the cause than the victim."""


KNOWN = 32
"""Affinities that a lane is taken to know."""


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
    subject: str = ""
    elsewhere: bool = False
    lost: int = 0


class NoLane:
    """For pools whose lanes are only threads."""

    def close(self) -> None:
        """There is nothing to close."""


@dataclass(eq=False)
class _Lane(Generic[L]):
    opener: Callable[[], L]
    value: L | None = None
    opening: bool = False
    lost: bool = False
    """Its value is gone; opened again once no job holds it."""
    ended: bool = False
    """It could not be opened, or is closed."""
    running: int = 0
    alone: bool = False
    """The job under way once lost a lane: no other beside it."""
    warm: str = ""
    known: deque[str] = field(default_factory=lambda: deque(maxlen=KNOWN))
    """Of its latest jobs: it may still hold what it prepared for them."""


class LanePool(Generic[L]):
    """Runs jobs oldest first, but a lane prefers the task whose reference it keeps warm, then those
    it knows, those nobody knows, those that no other lane keeps warm. An idle lane takes any, and
    first.
    """

    def __init__(self, name: str, openers: Sequence[Callable[[], L]], *, depth: int = 1) -> None:
        self._jobs: list[_Job[L]] = []
        self._wake = threading.Condition()
        self._closed = False
        self._failure: WarpsmithError | None = None
        self._lanes = [_Lane(opener) for opener in openers]
        self._ran_on: dict[str, list[_Lane[L]]] = {}
        """Lanes that have worked on a subject."""
        self._threads = [
            threading.Thread(target=self._serve, args=(lane,), name=f"{name}-{i}", daemon=True)
            for i, lane in enumerate(self._lanes)
            for _ in range(depth)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        call: Callable[[L], R],
        *,
        affinity: str = "",
        fallback: Callable[[LaneLost], R] | None = None,
        subject: str = "",
        elsewhere: bool = False,
    ) -> Future[R]:
        """`call(lane)` on some lane; the future raises what it raises, or NoLaneLeft.

        `elsewhere` passes over lanes that had a job of the same `subject`, while others are open.
        """
        job = _Job(call, Future[R](), affinity, fallback, subject, elsewhere)
        with self._wake:
            if self._closed or self._failure is not None:
                job.future.set_exception(self._failure or NoLaneLeft("the engine is closed"))
            else:
                self._jobs.append(job)
                self._wake.notify_all()
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

    def _serve(self, lane: _Lane[L]) -> None:
        while self._opened(lane):
            job = self._take(lane)
            if job is not None:
                self._run(lane, job)
        with self._wake:
            value, lane.value = (None, lane.value) if lane.running else (lane.value, None)
        if value is not None:
            value.close()

    def _opened(self, lane: _Lane[L]) -> bool:
        """Whether there is something to run jobs on; opens it where no other thread does."""
        with self._wake:
            while lane.opening or (lane.lost and lane.running):
                self._wake.wait()
            if lane.ended or (self._closed and (lane.value is None or lane.lost)):
                return False
            if lane.value is not None and not lane.lost:
                return not self._closed
            lane.opening = True
        value = None
        try:
            value = lane.opener()
        except Exception as error:  # noqa: BLE001 (a thread's end: the pool must hear of it)
            self._give_up(lane, error)
        with self._wake:
            lane.value, lane.lost, lane.opening = value, False, False
            lane.known.clear()
            self._wake.notify_all()
        return value is not None

    def _take(self, lane: _Lane[L]) -> _Job[L] | None:
        """The next job for this lane; None where the lane or the pool has come to its end."""
        with self._wake:
            while True:
                if self._closed or lane.lost or lane.value is None:
                    return None
                job = None if lane.alone else self._choose(lane)
                if job is None:
                    self._wake.wait()
                    continue
                self._jobs.remove(job)
                if job.lost or job.future.set_running_or_notify_cancel():
                    lane.running += 1
                    lane.alone, lane.warm = bool(job.lost), job.affinity
                    if job.affinity and job.affinity not in lane.known:
                        lane.known.append(job.affinity)
                    if job.subject:
                        self._ran_on.setdefault(job.subject, []).append(lane)
                    return job

    def _choose(self, lane: _Lane[L]) -> _Job[L] | None:
        if not self._jobs:
            return None
        if self._jobs[0].lost:
            return None if lane.running else self._jobs[0]
        others = [other for other in self._lanes if other is not lane and not other.ended]
        elsewhere = {other.warm for other in others}
        known = {affinity for other in others for affinity in other.known}
        may_begin = not lane.running or all(other.running for other in others)
        for wanted in (
            lambda job: job.affinity == lane.warm,
            lambda job: job.affinity in lane.known and job.affinity not in elsewhere,
            lambda job: may_begin and (not job.affinity or job.affinity not in known),
            lambda job: may_begin and job.affinity not in elsewhere,
            lambda job: not lane.running,
        ):
            job = next((j for j in self._jobs if wanted(j) and self._may(lane, j)), None)
            if job is not None:
                return job
        return None

    def _may(self, lane: _Lane[L], job: _Job[L]) -> bool:
        """Not a lane that has worked on the subject, while there are others."""
        ran = self._ran_on.get(job.subject, []) if job.elsewhere else []
        return lane not in ran or all(other.ended or other in ran for other in self._lanes)

    def _run(self, lane: _Lane[L], job: _Job[L]) -> None:
        value = lane.value
        assert value is not None
        lost: LaneLost | None = None
        try:
            result = job.call(value)
        except LaneLost as error:
            lost = error
        except Exception as error:  # noqa: BLE001 (it belongs to whoever holds the future)
            job.future.set_exception(error)
        else:
            job.future.set_result(result)
        with self._wake:
            lane.running -= 1
            lane.alone = False
            lane.lost = lane.lost or lost is not None
            self._wake.notify_all()
        if lost is not None:
            self._return(job, lost)

    def _return(self, job: _Job[L], error: LaneLost) -> None:
        job.lost += 1
        log.warning("lane lost (%d of %d for this job): %s", job.lost, MAX_LOST, error)
        with self._wake:
            failure = self._failure  # meanwhile the last lane may have failed to open
            if job.lost < MAX_LOST and not self._closed and failure is None:
                self._jobs.insert(0, job)
                self._wake.notify_all()
                return
        if failure is not None:
            job.future.set_exception(failure)
        elif job.fallback is not None:
            job.future.set_result(job.fallback(error))
        else:
            job.future.set_exception(error)

    def _give_up(self, lane: _Lane[L], error: Exception) -> None:
        """A lane that cannot be opened (again): the others go on; the last one fails the rest."""
        with self._wake:
            if not self._closed:  # else closing itself may have ended what was being opened
                log.warning("a lane could not be opened: %s", error)
            lane.ended = True
            if not all(other.ended for other in self._lanes):
                return
            if isinstance(error, WarpsmithError) and not isinstance(error, LaneLost):
                self._failure = error
            else:
                self._failure = NoLaneLeft(f"no lane is left to measure on: {error}")
            jobs, self._jobs = self._jobs, []
        for job in jobs:
            if job.lost or job.future.set_running_or_notify_cancel():
                job.future.set_exception(self._failure)
