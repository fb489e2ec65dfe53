"""One evaluation's workers: how they start and end, the memory they need, and what was seen of them
so far.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.building.build import Builder
from sandbox.cleanup import on_failure
from sandbox.machine.device import DeviceFacts, free_bytes
from sandbox.machine.gpu_state import GpuState
from sandbox.machine.killed import oom_kills
from sandbox.machine.scratch import scratch_name, scratch_root
from sandbox.observation import Observation
from sandbox.prepare import ROOM_SHARE, Preparer
from sandbox.stages import Stages
from sandbox.subjects.early import Early
from sandbox.subjects.room import own_bytes, refuse_hoard, room_beside
from sandbox.subjects.signature import Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, EvalConfig, Task

UNASKED_SHARE = 1 / 64
"""Of a GPU's memory: for so little the driver is not asked what is free, which takes milliseconds
while other processes of the host ask it for something."""


@dataclass(frozen=True)
class Bench:
    """What all runs on one device share."""

    stand: Stand
    builder: Builder
    preparer: Preparer
    facts: DeviceFacts
    synchronize: Callable[[], None]


class Workers:
    """Those of one candidate on one device."""

    def __init__(
        self,
        bench: Bench,
        task: Task,
        candidate: Candidate,
        config: EvalConfig,
        *,
        again: bool = False,
    ) -> None:
        """`again`: room was made for it; what it lacks now, it lacks."""
        self.stand, self.builder, self.preparer = bench.stand, bench.builder, bench.preparer
        self.facts, self.synchronize = bench.facts, bench.synchronize
        self.task = task
        self.candidate = candidate
        self.config = config
        self.again = again
        self.oom_kills = oom_kills()
        self.stage = Stages()
        self.observation = Observation(task.id, candidate.id, language=candidate.language)
        self.preload: list[tuple[Path, str]] = []
        root = scratch_root()  # where the next process removes what this one leaves if it is killed
        self.kept = tempfile.TemporaryDirectory(prefix=f"{scratch_name(root)}-", dir=root)
        self.walls = ""
        self.loaded: Subject | None = None
        """Frozen until it is measured: its code has run."""
        self.starved = False
        """It is not loaded for want of a GPU's memory, which others hold."""
        self.looking: Future[GpuState] | None = None
        """At the GPU, since its turn began; for the first pair."""
        self.ended: tuple[Subject, Future[None]] | None = None
        self.watched: Future[None] | None = None
        """The end of the profiled worker, whose output says nothing."""

    def note(self, **seen: object) -> Observation:
        self.observation = replace(self.observation, **seen)  # type: ignore[arg-type]
        return self.observation

    def beside(
        self, subject: Subject | None, signature: Signature, calls: int, *, early: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """A block of so many calls in which a GPU's memory may run out, and whose fault that is.

        `early`: before anything is timed, a candidate that lacks memory has another try; later it
        could choose between its times.
        """
        return room_beside(
            subject,
            self.task.device,
            self.facts.memory_bytes,
            own_bytes(signature, calls),
            settle=self.stand.settle,
            crowded=early and not self.again,
        )

    def make_room(self, reference: Subject | None, needed: int) -> None:
        """A large task has the memory of idle references and of workers that ended."""
        if self._unasked(needed):
            return
        if needed > ROOM_SHARE * free_bytes(self.task.device):
            self.preparer.warm.rest(reference)
            self.stand.settle()

    def _unasked(self, needed: int) -> bool:
        little = needed <= UNASKED_SHARE * self.facts.memory_bytes
        return little and self.task.device == "cuda" and not self.again

    def dismiss(self) -> None:
        """End the worker that was loaded, if it still waits for a pair."""
        subject, self.loaded = self.loaded, None
        if subject is not None:
            self.end(subject)

    def started(
        self,
        first: Signature | None,
        *,
        role: str = "candidate",
        early: Early | None = None,
        then_stop: bool = False,
    ) -> Subject:
        """A worker with the candidate, which has left memory to others."""
        subject = self.start(role=role, first=first, early=early, then_stop=then_stop)
        with on_failure(lambda: self.end(subject)), self.stand.quiet.murmur():
            refuse_hoard(subject, self.stand.gpu, self.facts.memory_bytes)
        return subject

    def start(
        self,
        *,
        role: str = "candidate",
        first: Signature | None = None,
        early: Early | None = None,
        then_stop: bool = False,
    ) -> Subject:
        subject = self.stand.candidate(
            self.task,
            self.candidate,
            self.config,
            self.preload,
            role=role,
            first=first,
            early=early,
            then_stop=then_stop,
        )
        self.walls = str(subject.worker.walls.get("grade", ""))
        return subject

    def end(self, subject: Subject) -> None:
        self.ended = subject, self.stand.retire(subject)
