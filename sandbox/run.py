"""One candidate's way through build, load, verify and time; yields an Observation, concludes
nothing.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from sandbox import copying, triage
from sandbox.build import Builder
from sandbox.device import DeviceFacts
from sandbox.judge import judge_case
from sandbox.observation import (
    CaseObservation,
    Errors,
    Failure,
    FailureKind,
    Observation,
    RoundObservation,
)
from sandbox.pair import ProcessPair
from sandbox.pool import Pool, timed_bounds
from sandbox.prepare import Preparation, Preparer
from sandbox.spawn import WorkerFailed
from sandbox.statistics import enough, summarise
from sandbox.subject import Opening, Stand, Subject
from sandbox.types import Candidate, EvalConfig, Status
from sandbox.verify import verify

UNMATCHED = (
    "ModelNew's parameters and buffers match the reference's neither by name nor by order, shape "
    "and dtype: register the same ones, and read them at every call"
)
MEMORY_TYPES = frozenset({"MemoryError", "OutOfMemoryError"})

CACHE_LIMIT = 512 << 20
"""Bytes of a candidate's Triton or cupy cache handed to its later workers."""


class Run:
    """State of one evaluation; `observe` drives it once."""

    def __init__(
        self,
        stand: Stand,
        builder: Builder,
        preparer: Preparer,
        preparation: Preparation,
        candidate: Candidate,
        config: EvalConfig,
        facts: DeviceFacts,
        synchronize: Callable[[], None],
    ) -> None:
        self.stand = stand
        self.builder = builder
        self.preparer = preparer
        self.preparation = preparation
        self.candidate = candidate
        self.config = config
        self.facts = facts
        self.synchronize = synchronize
        self.seconds: dict[str, float] = {}
        self.observation = Observation(
            preparation.task.id,
            candidate.id,
            sets=preparation.plan.sets,
            launches_at_least=facts.launch_s or None,
            floor_s=preparation.floor_s,
            noise_floor=preparation.null.floor,
        )
        self.preload: list[tuple[Path, str]] = []
        self.walls = ""
        self.pools = preparation.pools
        self.last: Subject | None = None
        self.verified: Subject | None = None

    def observe(self, to_beat: float | None) -> Observation:
        """Everything there is to see, up to the first failure."""
        rejected = triage.reject(self.candidate)
        if rejected:
            return self.note(rejected=rejected)
        with tempfile.TemporaryDirectory() as kept:
            try:
                self.build()
                if self.observation.failure is None:
                    self.check(Path(kept))
                if not self.observation.failure and self.sound():
                    self.time(to_beat)
            except WorkerFailed as failed:
                self.note(failure=blame(failed.failure))
            finally:
                self.dismiss()
        self.stand.settle()
        if self.last is not None:
            self.note(stdout=self.last.worker.stdout(), stderr=self.last.worker.stderr())
        environment = {**self.facts.environment, "walls": self.walls}
        return self.note(seconds=dict(self.seconds), environment=environment)

    def note(self, **seen: object) -> Observation:
        self.observation = replace(self.observation, **seen)  # type: ignore[arg-type]
        return self.observation

    def build(self) -> None:
        with self.stage("build"):
            report = self.builder.build(self.candidate, self.config)
        self.note(build_log=report.log, failure=report.failure)
        if report.artifacts is not None:
            self.preload.append((report.artifacts, "artifacts"))

    def check(self, kept: Path) -> None:
        """Load the candidate and verify it on every shape; its compiler caches serve later
        workers, and its worker the first pair of a search.
        """
        with self.stage("load"):
            subject = self.start()
        try:
            cases: list[CaseObservation] = []
            for number in (*range(1, len(self.pools)), 0):  # ends with the shape that is timed
                with self.stage("load"):
                    subject.stage = "load"
                    if cases:
                        subject.release()
                    matched = self.stand.open_candidate(subject, self.pools[number].signature)
                    if matched == "seed" and self.config.require_matched_parameters:
                        self.note(rejected=UNMATCHED, parameters=matched)
                        self.end(subject)
                        return
                    if matched == "seed" and not cases:
                        self.pools = self.seeded_pools()
                        matched = self.stand.open_candidate(subject, self.pools[number].signature)
                with self.stage("verify"):
                    subject.stage = "verify"
                    cases += verify(subject, self.pools[number], matched, self.synchronize)
                self.note(cases=tuple(cases), parameters=matched)
            for name in ("home/triton", "home/cupy"):
                # A compiler cache that is missing, or spoilt by its candidate, only costs time.
                with contextlib.suppress(OSError, ValueError):
                    copying.copy_folder(subject.worker.scratch, name, kept / name, CACHE_LIMIT)
                    self.preload.append((kept / name, name))
        except BaseException:
            self.end(subject)
            raise
        self.verified = subject

    def seeded_pools(self) -> tuple[Pool, ...]:
        """Cases whose parameters are as constructed, for candidates matched only by a shared
        seed.
        """
        return self.preparer.pools(self.preparation.task, self.config, randomise=False)

    def sound(self) -> bool:
        """Whether timing is worth while: there are cases, and every one passes."""
        return bool(self.observation.cases) and all(
            judge_case(case)[0] is Status.PASSED for case in self.observation.cases
        )

    def time(self, to_beat: float | None) -> None:
        """Process pairs until the statistics say enough.

        All are fresh for a figure that is reported; in a search the first pair is the task's warm
        reference and the worker that was verified.
        """
        rounds: list[RoundObservation] = []
        bounds = timed_bounds(self.pools[0].cases[0])
        worst = CaseObservation("timed rounds", (Errors(),) * len(bounds), bounds)
        null = self.preparation.null
        for number in range(self.config.max_pairs):
            warm = number == 0 and to_beat is not None and self.observation.parameters != "seed"
            for seen, case in self.warm_pair(bounds) if warm else self.pair(number, bounds):
                rounds.append(seen)
                worst = merge(worst, case)
                self.note(rounds=tuple(rounds), timed=worst)
                if judge_case(worst)[0] is not Status.PASSED:
                    return
            if enough(summarise(rounds), null, self.config, to_beat):
                return

    def pair(
        self, number: int, bounds: tuple[Errors, ...]
    ) -> Iterator[tuple[RoundObservation, CaseObservation]]:
        self.dismiss()
        self.preparer.rest()
        task, config = self.preparation.task, self.config
        seeded = self.observation.parameters == "seed"
        opening = Opening(randomise=not seeded, known=self.pools[0].signature)
        with self.stage("start"):
            (reference, signature), subject = self.stand.start_both(
                lambda: self.stand.reference(task, config, opening), self.start
            )
        try:
            with self.stage("start"):
                self.stand.open_candidate(subject, signature)
            yield from self.race(number, reference, subject, bounds, new_weights=not seeded)
        finally:
            self.end(subject)
            self.stand.retire(reference)

    def warm_pair(
        self, bounds: tuple[Errors, ...]
    ) -> Iterator[tuple[RoundObservation, CaseObservation]]:
        with self.stage("start"):
            reference = self.preparer.warm_reference(self.preparation, self.config)
        assert self.verified is not None
        try:
            yield from self.race(0, reference, self.verified, bounds, new_weights=True)
        except WorkerFailed:
            self.preparer.cool()
            raise
        finally:
            self.dismiss()

    def race(
        self,
        number: int,
        reference: Subject,
        subject: Subject,
        bounds: tuple[Errors, ...],
        *,
        new_weights: bool,
    ) -> Iterator[tuple[RoundObservation, CaseObservation]]:
        with self.stage("start"):
            subject.stage = "time"
            pair = ProcessPair(
                number,
                reference,
                subject,
                self.pools[0].signature,
                self.preparation.plan,
                self.config,
                self.synchronize,
                new_weights=new_weights,
            )
            self.stand.settle()
            pair.start(self.config.load_timeout_s)
        with self.stage("time"):
            yield from pair.rounds(bounds)

    def dismiss(self) -> None:
        """End the worker that was verified, if it still waits for a pair."""
        subject, self.verified = self.verified, None
        if subject is not None:
            self.end(subject)

    def start(self) -> Subject:
        subject = self.stand.candidate(
            self.preparation.task, self.candidate, self.config, self.preload
        )
        self.walls = str(subject.worker.walls.get("grade", ""))
        return subject

    def end(self, subject: Subject) -> None:
        self.stand.retire(subject)
        self.last = subject

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start


def blame(failure: Failure) -> Failure:
    """A reference that fails beside a candidate is our fault, unless the memory was taken from
    it.
    """
    if failure.stage != "reference":
        return failure
    if MEMORY_TYPES & set(failure.types):
        words = "the candidate left no memory for the reference"
        return Failure("time", FailureKind.MEMORY, message=words)
    return replace(failure, kind=FailureKind.FAULT)


def merge(worst: CaseObservation, case: CaseObservation) -> CaseObservation:
    """The worse of two rounds, field by field."""
    return CaseObservation(
        name=worst.name,
        errors=tuple(a.worst(b) for a, b in zip(worst.errors, case.errors, strict=True)),
        bounds=worst.bounds,
        inputs_mutated=worst.inputs_mutated or case.inputs_mutated,
        structure_differs=worst.structure_differs or case.structure_differs,
        shape_differs=worst.shape_differs or case.shape_differs,
        dtype_differs=worst.dtype_differs or case.dtype_differs,
        foreign_type=worst.foreign_type or case.foreign_type,
    )
