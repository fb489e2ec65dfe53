"""One candidate's way through build, load, verify and time; yields an Observation, concludes
nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sandbox.building.build import CACHE_LIMIT
from sandbox.building.machine_code import digest_of
from sandbox.checking.verify import counted, profiled, verify
from sandbox.errors import DeviceError, InvalidReference, SandboxFault
from sandbox.judging import layers
from sandbox.judging.invalid import NoRoom
from sandbox.judging.judge import judge_case
from sandbox.judging.provenance import provenance
from sandbox.machine import copying
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.killed import oom_kills, was_killed
from sandbox.machine.queues import role_of
from sandbox.machine.ready import PROFILED
from sandbox.observation import (
    CaseObservation,
    Failure,
    FailureKind,
    Observation,
    Provenance,
)
from sandbox.pairs import arenas
from sandbox.prepare import Preparation
from sandbox.static.scan import scan
from sandbox.subjects.early import Early
from sandbox.subjects.plan import Plan
from sandbox.subjects.room import SHORTAGE, blame, own_bytes
from sandbox.subjects.signature import Signature
from sandbox.subjects.subject import Subject
from sandbox.timing import Timed
from sandbox.types import Status
from sandbox.walls.folders import ARTIFACTS, CUPY_CACHE, TRITON_CACHE

UNMATCHED = (
    "ModelNew's parameters and buffers match the reference's neither by name nor by order, shape "
    "and dtype: register the same ones, and read them at every call"
)


class Run(Timed):
    """One evaluation: `load`, then `measure` while the device is held, then `finish`."""

    def load(self, first: Signature | None = None, early: Early | None = None) -> None:
        """Static scan, build, and a worker with the candidate imported, and its model constructed
        where it is known what for, with what it needs of a GPU's memory `early`: host work, for any
        thread.
        """
        if self.note(source=scan(self.candidate.source)).source.refused:
            return
        try:
            self.build()
            if self.observation.failure is None:
                with self.stage("load"):
                    self.loaded = self.started(first, role=self.role, early=early, then_stop=True)
        except WorkerFailed as failed:
            self.dismiss()
            self.starved = self.task.device == "cuda" and SHORTAGE in failed.failure.types
            if not self.starved:
                self.note(failure=failed.failure)

    @property
    def role(self) -> str:
        """Of the worker that is loaded: nothing but a search is timed in it."""
        return role_of(self.candidate.source, self.task.device)

    def measure(self, preparation: Preparation, to_beat: float | None) -> None:
        """Verify and time what was loaded, if anything, up to the first failure."""
        with self.stage.other():
            self._measure(preparation, to_beat)
        self.spare()

    def spare(self) -> None:
        """What was killed while the host ran out of memory may have room another time, with less
        beside it; the second time it is out of memory. Raises SandboxFault the first time.
        """
        failure = self.observation.failure
        if failure is None or oom_kills() == self.oom_kills:
            return
        if failure.kind is FailureKind.DIED or was_killed(failure.message):
            words = f"{failure.message}, while the host had no memory left"
            if not self.again:
                raise SandboxFault(f"{self.task.id}: {failure.stage}: {words}")
            self.note(failure=Failure(failure.stage, FailureKind.MEMORY, message=words))

    def _measure(self, preparation: Preparation, to_beat: float | None) -> None:
        self.preparation = preparation
        self.pools = preparation.pools
        self.to_beat = to_beat
        self.plan = preparation.plan if to_beat is None else preparation.search_plan
        self.note(
            sets=self.plan.sets,
            planned_sets=self.plan.sets,
            launches_at_least=self.facts.launch_s or None,
            floor_s=preparation.floor_s if to_beat is None else preparation.search_floor_s,
            noise_floor=preparation.null.floor,
        )
        if to_beat is None:
            self.preparer.warm.cool(self.task, self.config)  # all pairs will be fresh
        try:
            if self.starved:
                self.load_again()
            if self.loaded is None:
                return
            if to_beat is not None and not self.config.verify_only:
                self.looking = self.stand.look()
            self.loaded.worker.thaw()
            self.stand.begin(self.loaded, preparation.first)
            self.check(self.loaded, Path(self.kept.name))
            right = self.loaded is not None and self.sound() and self.unmasked()
            if right and not self.config.verify_only:
                self.time()
                if self.promising():
                    self.profile()
        except WorkerFailed as failed:
            self.note(failure=blame(failed.failure))
        finally:
            self.dismiss()
            self.pools = ()
            del self.preparation

    def finish(self) -> Observation:
        """What was seen, once the last worker is gone. Raises SandboxFault for one that survives
        and OSError where its traces cannot be removed.
        """
        self.dismiss()
        self.kept.cleanup()
        if self.watched is not None:
            self.watched.result()
        if self.ended is not None:
            subject, gone = self.ended
            gone.result()
            self.note(stdout=subject.worker.stdout(), stderr=subject.worker.stderr())
        environment = {**self.facts.environment, "walls": self.walls}
        if self.stand.gpu is not None:
            environment["gpu_watch"] = self.stand.gpu.sees
        return self.note(seconds=dict(self.stage.seconds), environment=environment)

    def load_again(self) -> None:
        """While the device is held, with what idle workers had."""
        self.preparer.warm.rest()
        self.stand.settle()
        with self.stage("load"), self.beside(None, self.pools[0].signature, 1, early=True):
            self.loaded = self.started(self.preparation.first, role=self.role)

    def build(self) -> None:
        with self.stage("build"):
            report = self.builder.build(self.candidate, self.config, self.task)
        self.note(build_log=report.log, failure=report.failure)
        if report.artifacts is not None:
            self.preload.append((report.artifacts, ARTIFACTS))
        if report.kernels is not None:
            self.preload.append((report.kernels, TRITON_CACHE))

    def check(self, subject: Subject, kept: Path) -> None:
        """Verify the candidate on every shape; its compiler caches serve later workers, and its
        worker the first pair of a search. Where it is refused, nothing is loaded any more.
        """
        cases: list[CaseObservation] = []
        subject.room = self.room() or subject.room
        for number in self.preparation.order:
            signature, count = self.pools[number].signature, len(self.pools[number].cases)
            with self.stage("open"), self.beside(subject, signature, count, early=True):
                subject.stage = "load"
                if cases:
                    subject.release()
                matched = self.stand.open_candidate(subject, self.pools[number].signature)
                if matched == "seed" and (self.config.require_matched_parameters or not cases):
                    refused = self.reseed(subject)
                    if refused:
                        self.note(rejected=refused, parameters=matched)
                        self.dismiss()
                        return
                    signature, count = self.pools[number].signature, len(self.pools[number].cases)
                    matched = self.stand.open_candidate(subject, signature)
            one_side = Plan(count, 0).bytes(signature) // 2
            self.make_room(None, max(one_side, sum(subject.room.values())))
            with self.stage("verify"), self.beside(subject, signature, count, early=True):
                subject.stage = "verify"
                cases += verify(subject, self.pools[number], matched, self.synchronize)
            self.note(cases=tuple(cases), parameters=matched)
        made = []
        for name in (TRITON_CACHE, CUPY_CACHE, ARTIFACTS):
            # A compiler cache that is missing, or spoilt by its candidate, only costs time.
            with contextlib.suppress(OSError, ValueError):
                copying.copy_folder(subject.worker.scratch, name, kept / name, CACHE_LIMIT)
                made.append(kept / name)
                self.preload.append((kept / name, name))
        with contextlib.suppress(OSError):
            self.note(machine_code=digest_of(made))

    def room(self) -> Mapping[str, int]:
        """Bytes of the arenas of a GPU that its worker will both be verified and timed in."""
        if self.task.device == "cpu" or self.to_beat is None or self.again:
            return {}
        if self.config.verify_only:
            return {}
        return arenas.needed(self.pools, self.plan, arenas.ONCE_SHARE * self.facts.memory_bytes)

    def reseed(self, subject: Subject) -> str:
        """Cases whose parameters are as constructed, for candidates matched only by a shared seed;
        returns why there are none.
        """
        if self.config.require_matched_parameters:
            return UNMATCHED
        subject.worker.freeze()  # the reference is examined beside it
        try:
            self.pools = self.preparer.pools(self.task, self.config, randomise=False)
        except NoRoom as error:
            raise DeviceError(str(error)) from None
        except InvalidReference as error:
            return f"{UNMATCHED}; with the parameters that are constructed, {error}"
        finally:
            subject.worker.thaw()
        return ""

    def sound(self) -> bool:
        """Whether timing is worth while: there are cases, and every one passes."""
        return bool(self.observation.cases) and all(
            judge_case(case)[0] is Status.PASSED for case in self.observation.cases
        )

    def unmasked(self) -> bool:
        """Whether what the worker says of itself leaves timing worth while."""
        assert self.loaded is not None
        with self.stage("verify"):
            self.note(runtime=self.loaded.claim())
        return layers.proof(layers.runtime(self.observation.runtime)) is None

    def profile(self) -> None:
        """Where its time goes, in a worker of its own, after all timing: evidence only."""
        self.dismiss()
        unit = "device" if self.task.device == "cuda" else "host"
        subject = None
        with self.stage("profile"):
            try:
                self.make_room(None, own_bytes(self.pools[0].signature, 1))
                subject = self.start(role=PROFILED)
                subject.stage = "profile"
                self.stand.open_candidate(subject, self.pools[0].signature)
                claim = profiled(subject, self.pools[0], self.synchronize)
                found = provenance(unit, claim, self.observation.source.kernels)
                if unit == "device" and self.config.hardware_counters:
                    counters, why = counted(subject)
                    found = replace(found, counters=counters, uncounted=why)
            except (WorkerFailed, DeviceError) as failed:
                found = Provenance(unit, 0.0, 0.0, problem=str(failed)[:200])
            finally:
                if subject is not None:
                    self.watched = self.stand.retire(subject)
        self.note(provenance=found)
