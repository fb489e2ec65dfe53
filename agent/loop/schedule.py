"""What may begin now: a campaign's jobs by round and task. Bookkeeping: nothing is run here."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from agent.journals.outcome import Stage
from agent.journals.recorded import Recorded
from agent.types import Proposer
from sandbox.types import Task


class Kind(IntEnum):
    """Of a job; the lower goes first among those of one round of one task."""

    PROPOSE = 0
    BUILD = 1
    PREPARE = 2
    EVALUATE = 3
    CONFIRM = 4

    @property
    def on_lane(self) -> bool:
        return self >= Kind.PREPARE

    @property
    def stage(self) -> Stage:
        """Of a task while such a job of it runs."""
        return (
            Stage.PROPOSING,
            Stage.BUILDING,
            Stage.PREPARING,
            Stage.MEASURING,
            Stage.CONFIRMING,
        )[self]


@dataclass
class TaskRun:
    """One task's place in the loop."""

    task: Task
    index: int
    proposers: Sequence[Proposer]
    """Those that can work on it."""
    budget: int = 0
    begun: bool = False
    stage: Stage = Stage.WAITING
    reason: str = ""
    prepared: bool = False
    resting: bool = False
    """Its next round waits until the learner has learned from this one."""
    awaiting: bool = False
    """Has used up its share of the candidates; a wave may grant more (agent/loop/waves.py)."""
    owed: bool = False
    """Requests of it wait in a file: until their replies are here no wave is decided."""
    outstanding: int = 0
    """Jobs queued or under way; a round is complete at 0."""
    again: Sequence[Recorded] = ()
    """What a fault of ours kept an earlier call from judging, to be judged when it begins."""
    built: list[Recorded] = field(default_factory=list)
    """Held until the task is prepared."""
    search_until_s: float | None = None
    """Clock when its share of the time is over: no round begins after it."""
    exhausted: bool = False
    """No proposer has anything more."""
    taught: bool = False
    """The weights that propose for it have had all their updates."""
    halted: str | None = None
    """Why its models could not be asked any further; what was found is still confirmed."""

    @property
    def active(self) -> bool:
        """Something of it is under way or about to be."""
        return self.begun and not self.stage.final and not self.awaiting


@dataclass(order=True)
class Job:
    """Ordered by round first, then by task: time is shared fairly."""

    round: int
    index: int
    kind: Kind
    record_id: int
    run: TaskRun = field(compare=False)
    record: Recorded | None = field(compare=False, default=None)
    retried: bool = field(compare=False, default=False)
    begun_s: float = field(compare=False, default=0.0)
    """Clock when it was handed to the engine."""
    aside: bool = field(compare=False, default=False)
    """Its task goes on without it; what comes of it is still recorded."""

    @property
    def place(self) -> tuple[int, int]:
        return (self.round, self.index)


class Schedule:
    """Jobs that wait, and how many of each sort run."""

    def __init__(self, places: int, *, thinkers: int, apart: bool = False) -> None:
        """`places` for jobs on lanes, those included that a lane loads while it measures; `apart`:
        nothing is proposed while lanes work, since a model samples on what they measure on.
        """
        self._places, self._thinkers, self._apart = places, thinkers, apart
        self._proposals: list[Job] = []
        self._builds: list[Job] = []
        self._lane_jobs: list[Job] = []
        self._running = dict.fromkeys(Kind, 0)

    def push(self, job: Job) -> None:
        heapq.heappush(self._queue(job.kind), job)
        job.run.outstanding += 1

    def drop(self, kinds: Sequence[Kind], run: TaskRun | None = None) -> list[Job]:
        """Take waiting jobs of these kinds (of one task) out, for good."""
        dropped: list[Job] = []
        for queue in (self._proposals, self._builds, self._lane_jobs):
            out = [j for j in queue if j.kind in kinds and (run is None or j.run is run)]
            queue[:] = [j for j in queue if j not in out]
            heapq.heapify(queue)
            dropped += out
        for job in dropped:
            job.run.outstanding -= 1
        return dropped

    def ended(self, job: Job) -> None:
        self._running[job.kind] -= 1
        job.run.outstanding -= 1

    def begin(self) -> Iterator[Job]:
        """Each job that may start now, counted as running from here on."""
        while (job := self._next()) is not None:
            self._running[job.kind] += 1
            yield job

    def _next(self) -> Job | None:
        proposing, on_lanes = self._running[Kind.PROPOSE], self.on_lanes
        thinks = proposing < self._thinkers and not (self._apart and on_lanes)
        measures = on_lanes < self._places and not (self._apart and proposing)
        if self._proposals and thinks:
            return heapq.heappop(self._proposals)
        if self._builds:
            return heapq.heappop(self._builds)
        if self._lane_jobs and measures:
            return heapq.heappop(self._lane_jobs)
        return None

    @property
    def on_lanes(self) -> int:
        """Jobs that lanes have taken."""
        return sum(self._running[kind] for kind in Kind if kind.on_lane)

    def queued(self) -> dict[str, int]:
        """Jobs by what they wait for or are in."""
        return {
            "to propose": len(self._proposals),
            "proposing": self._running[Kind.PROPOSE],
            "to build": len(self._builds),
            "building": self._running[Kind.BUILD],
            "to measure": len(self._lane_jobs),
            "on lanes": self.on_lanes,
        }

    def _queue(self, kind: Kind) -> list[Job]:
        if kind.on_lane:
            return self._lane_jobs
        return self._builds if kind is Kind.BUILD else self._proposals
