"""The evaluator of one device: what a lane runs. Holds the zygote, the builder and prepared
tasks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from sandbox.admission import Admission
from sandbox.baselines.beforehand import Begun
from sandbox.building.build import Builder
from sandbox.building.language import no_gpu
from sandbox.cache import cache_root
from sandbox.errors import (
    Crowded,
    DeviceError,
    InvalidReference,
    SandboxFault,
    Shortage,
    TaskError,
)
from sandbox.judging import judge
from sandbox.judging.invalid import Died, NoRoom, reference_failed
from sandbox.machine import memory
from sandbox.machine.device import DeviceFacts, device_facts, measured_again
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.quiet import Quiet, Turns
from sandbox.machine.spawn import Zygote
from sandbox.observation import FailureKind
from sandbox.prepare import Figures, Preparation, Preparer
from sandbox.prepared import Prepared, Refused, valid
from sandbox.run import Run
from sandbox.subjects.early import Early
from sandbox.subjects.signature import Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, EvalConfig, Evaluation, Status, Task
from sandbox.validate import validate
from sandbox.workers import Bench

logger = logging.getLogger(__name__)
Done = TypeVar("Done")

READY = 2
READY_SHARE = 0.1
"""Of the device's memory that waiting workers may take: half of it holds eight contexts on an H100,
about as many as the groups of one task's baselines give back for the next."""
CONTEXT_BYTES = 500 << 20
INDUCTOR = ("torch._dynamo", "torch._inductor.compile_fx")
"""What the first torch.compile in a process imports for about two seconds."""
VECTORS = "sandbox.worker.vectors"
ATTEMPTS = 2
"""A fault of ours is retried once before it is reported as SANDBOX_ERROR."""
LACKING = (Shortage, memory.OutOfMemoryError, torch.OutOfMemoryError)


class LocalEvaluator:
    """Evaluates candidates on this machine's CPU or on one of its GPUs, one at a time."""

    def __init__(
        self,
        device: str = "cpu",
        device_index: int = 0,
        cache_dir: Path | None = None,
        *,
        ready: int | None = None,
    ) -> None:
        """Raises DeviceError when the device is not usable.

        `ready`: workers of each side kept waiting; by default as many as the device has room for.
        """
        if device not in ("cpu", "cuda"):
            raise DeviceError(f"unknown device {device!r}; expected 'cpu' or 'cuda'")
        self.device = device
        self._device_index = device_index
        self._cache = cache = cache_dir or cache_root()
        if device == "cuda":
            if not torch.cuda.is_available():
                raise DeviceError(
                    "no usable NVIDIA GPU: check nvidia-smi and that torch has CUDA support, "
                    "or use --device cpu"
                )
            torch.cuda.set_device(device_index)
        self._zygote = Zygote(device, device_index)
        self._zygote.start()
        self._facts = device_facts(device, cache)
        if device == "cpu":
            # Our OpenMP threads would spin for milliseconds after each copy, on the candidate's
            # cores: single-set calls then cost 4 ms more than batched ones (measured, 2 cores).
            torch.set_num_threads(1)
        self._synchronize: Callable[[], None] = (
            torch.cuda.synchronize if device == "cuda" else lambda: None
        )
        self._turns = Turns()
        self._quiet = Quiet(same_cores=device == "cpu")
        self._builder = Builder(cache, quiet=self._quiet, zygote=self._zygote)
        waiting = min(READY, self._used()) if ready is None else ready
        self._stand = Stand(self._zygote, self._quiet, waiting, self._used())
        self._compiling = Zygote(
            device,
            device_index,
            imports=INDUCTOR if device == "cuda" else (*INDUCTOR, VECTORS),
            environment={"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor" / "probes")},
        )
        self._compilers = Stand(self._compiling, self._quiet, used=self._used() // 2)
        self._prepared = Prepared(device, self._facts.memory_bytes)
        self._preparer = Preparer(
            self._stand,
            self._compilers,
            self._facts,
            cache,
            self._synchronize,
            self._prepared.forget_cases,
            self._turns.tell_room,
        )
        self._bench = Bench(
            self._stand, self._builder, self._preparer, self._facts, self._synchronize
        )
        self._preparing: dict[str, threading.Event] = {}
        """Tasks whose reference some thread loads: others load their candidates meanwhile."""
        self._admitted: set[str] = set()
        """Tasks that were prepared once: no later failure says anything of the task."""

    def _used(self) -> int:
        """Workers that may wait once their task is over; nor are as many kept ready. On the CPU a
        fork is quick enough.
        """
        contexts = READY_SHARE * self._facts.memory_bytes / CONTEXT_BYTES
        return 0 if self.device == "cpu" else int(contexts / 2)

    @property
    def facts(self) -> DeviceFacts:
        """What the device can do, measured."""
        return self._facts

    def prepare(self, task: Task, config: EvalConfig) -> Preparation:
        """Admit the task and time its baselines, or return what is warm.

        Raises InvalidReference where the task cannot be scored, TaskError where it is for another
        device, SandboxFault for a fault of ours, a device without room included.
        """
        self._refuse_other_device(task)
        key = f"{task.hash}-{config.id}"
        found = self._prepared.get(key)  # without a turn: the candidate is to be loaded meanwhile
        if found is not None:
            return valid(found)
        return self._ours(task, partial(self._prepare, key, task, config))

    def figures(self, task: Task, config: EvalConfig) -> Figures:
        """What preparing the task tells: from when that was done, else by doing it. The first
        candidate of a task that was not done here prepares it again, for its secret cases.

        Raises what `prepare` raises.
        """
        self._refuse_other_device(task)
        known = self._preparer.figures(task, config)
        if known is not None:
            return known
        if config.baselines_only:
            return self._ours(task, partial(self._time_baselines, task, config))
        return self.prepare(task, config).figures

    def _time_baselines(self, task: Task, config: EvalConfig) -> Figures:
        key = f"{task.hash}-{config.id}"
        with self._turns.alone(), self._begun(task, config) as begun, self._hold(key):
            return self._preparer.time_baselines(task, config, begun)

    @contextmanager
    def _begun(self, task: Task, config: EvalConfig) -> Iterator[Begun | None]:
        """The task as far as it can be begun while another one is timed; not on the cores of what
        is timed.
        """
        room = not self._quiet.same_cores and self._turns.room_beside()
        begun = None
        try:
            begun = self._preparer.begin(task, config) if room else None
            yield begun
        finally:
            self._turns.leave_room()
            if begun is not None:
                begun.close()

    def _prepare(self, key: str, task: Task, config: EvalConfig) -> Preparation:
        if self._preparer.is_timed(task, config):
            return self._prepare_beside(key, task, config)
        with self._turns.alone(), self._hold(key):
            return self._preparation(key, task, config)

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, *, to_beat: float | None = None
    ) -> Evaluation:
        """Judge and time one candidate; never raises for a candidate's, a task's or a worker's
        fault.

        Safe to call from several threads: while one candidate holds the device, the others are
        built and loaded.
        """
        start = time.monotonic()
        if self.device == "cpu" and candidate.language.needs_gpu:
            why, here = no_gpu(candidate.language), self._facts.environment
            return judge.fault(task.id, candidate.id, config, why, here)
        result = self._judged(task, candidate, config, to_beat)
        if judge.accused_by_clock(result):
            logger.warning("%s is judged again: %s", task.id, result.detail)
            wronged = judge.beyond_device(result) and self._is_faster_than_known()
            again = self._judged(task, candidate, config, to_beat)
            result = again if wronged else judge.repeated(result, again)
        total = time.monotonic() - start
        return replace(result, seconds={**result.seconds, "total": total})

    def _is_faster_than_known(self) -> bool:
        """Whether the device was busy when its facts were measured; what rests on them is prepared
        anew then.
        """
        with self._hold(""):
            try:
                found = measured_again(self._facts, self._cache)
            except torch.OutOfMemoryError:
                return False
            if found == self._facts:
                return False
            logger.warning("the device is faster than was measured when it was busy: noted")
            self._facts = self._preparer.facts = found
            self._bench = replace(self._bench, facts=found)
            self._prepared.clear()
            return True

    def _judged(
        self, task: Task, candidate: Candidate, config: EvalConfig, to_beat: float | None
    ) -> Evaluation:
        """Once more where the fault was ours."""
        for attempt in range(ATTEMPTS):
            short = crowded = False
            try:
                result = self._evaluate(task, candidate, config, to_beat, again=attempt > 0)
            except InvalidReference as error:
                self._settle()
                invalid = Evaluation(task.id, candidate.id, config.id, Status.INVALID_REFERENCE)
                return replace(invalid, detail=str(error), no_room=isinstance(error, NoRoom))
            except (SandboxFault, DeviceError, OSError, torch.OutOfMemoryError) as error:
                lacked = isinstance(error, LACKING) and not self._had_room(task, config)
                why, here = str(error), self._facts.environment
                result = judge.fault(task.id, candidate.id, config, why, here, no_room=lacked)
                short = isinstance(error, (DeviceError, *LACKING))
                crowded = isinstance(error, Crowded)
            if short and self.device == "cuda" and attempt + 1 < ATTEMPTS:
                self._make_room(cases=not crowded)  # out here: the exception's frames hold those
            if result.status is not Status.SANDBOX_ERROR:
                break
            logger.warning("attempt %d on %s: %s", attempt + 1, task.id, result.detail)
        return result

    def validate(self, task: Task, config: EvalConfig, *, compiled: bool = False) -> Admission:
        """Everything that speaks for or against scoring the task (sandbox/admission.py).

        Raises TaskError where it is for another device, SandboxFault for a fault of ours.
        """
        self._refuse_other_device(task)
        try:
            return self._ours(task, partial(self._validate, task, config, compiled))
        finally:
            self._compilers.settle()
            self._stand.settle()
            if self.device == "cuda":
                torch.cuda.empty_cache()

    def _validate(self, task: Task, config: EvalConfig, compiled: bool) -> Admission:
        with self._turns.alone(), self._hold(task.hash):
            # Counting operations imports what torch.compile does, for seconds in each new process.
            return validate(self._compilers, self._preparer, task, config, compiled=compiled)

    def _ours(self, task: Task, work: Callable[[], Done]) -> Done:
        """What went wrong with one task is no reason to give up the others."""
        try:
            return work()
        except (memory.OutOfMemoryError, torch.OutOfMemoryError) as error:
            fault: SandboxFault = Shortage(f"{task.id}: {error}")
        except (DeviceError, OSError) as error:
            fault = SandboxFault(f"{task.id}: {error}")
        # Out here: the first exception's frames hold gigabytes of cases.
        if self.device == "cuda":
            torch.cuda.empty_cache()
        raise fault

    def _refuse_other_device(self, task: Task) -> None:
        if task.device != self.device:
            raise TaskError(
                f"{task.id} is for device {task.device}; this evaluator has {self.device}"
            )

    def _make_room(self, *, cases: bool) -> None:
        """On a GPU, where a shortage of memory may be what went wrong; `cases`: of what is kept
        for other tasks too.
        """
        try:
            with self._hold(""):
                if cases:
                    self._prepared.forget_cases()
                self._preparer.warm.rest()
                self._preparer.end_used()
            torch.cuda.empty_cache()
        except (SandboxFault, DeviceError, OSError, RuntimeError) as error:
            logger.warning("no room could be made: %s", error)  # the next attempt says what is

    def cool(self) -> None:
        """End the references that are kept warm for further candidates."""
        with self._hold(""):
            self._preparer.warm.cool()
        self._stand.settle()

    def close(self) -> None:
        """End every process this evaluator started."""
        self._prepared.clear()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        self._stand.ready.close()
        with suppress(SandboxFault):
            self._compilers.settle()
        self._compilers.ready.close()
        self.cool()
        self._compiling.close()
        self._builder.close()
        self._zygote.close()

    def _evaluate(
        self,
        task: Task,
        candidate: Candidate,
        config: EvalConfig,
        to_beat: float | None,
        *,
        again: bool,
    ) -> Evaluation:
        start = time.monotonic()
        key = f"{task.hash}-{config.id}"
        another = self._preparing.get(key)
        told = (None, None) if another is not None else self._told(task, config, to_beat, again)
        begin = time.monotonic()
        seconds = {"prepare": begin - start}
        with self._turns.under_way():
            seconds["wait"] = time.monotonic() - begin
            run = Run(self._bench, task, candidate, config, again=again)
            try:
                run.load(*told)
                begin = time.monotonic()
                if another is not None:
                    another.wait()
                with self._hold(key):
                    seconds["wait"] += time.monotonic() - begin
                    # Again, since later tasks may have displaced it meanwhile.
                    preparation = self._preparation(key, task, config)
                    null, baselines = preparation.null, preparation.baselines
                    run.measure(preparation, to_beat)
                    del preparation  # gigabytes, which the next to hold the device may need
            finally:
                observation = run.finish()
        self._settle()
        result = judge.judge(observation, null, config)
        baselines = baselines if result.timing is not None else ()
        return replace(result, baselines=baselines, seconds={**seconds, **result.seconds})

    def _told(
        self, task: Task, config: EvalConfig, to_beat: float | None, again: bool
    ) -> tuple[Signature, Early | None]:
        """What a candidate is loaded for, and the memory that it can have with that: of the
        preparation no more, whose cases are gigabytes.
        """
        prepared = self.prepare(task, config)
        if self.device == "cpu" or to_beat is None or config.verify_only or again:
            return prepared.first, None
        return prepared.first, prepared.early(self._facts.memory_bytes)

    def _settle(self) -> None:
        """The last one out sees that every worker is gone."""
        if self._turns.idle:
            self._stand.settle()

    def _preparation(
        self, key: str, task: Task, config: EvalConfig, started: Subject | None = None
    ) -> Preparation:
        """What is kept, or prepared now; the device is held."""
        found = self._prepared.use(key)
        if found is None:
            had_room = self._had_room(task, config)
            try:
                found = self._preparer.prepare(task, config, started)
                self._admitted.add(key)
            except InvalidReference as error:
                found = Refused(str(error), isinstance(error, NoRoom))
            if isinstance(found, Refused):
                if self.device == "cuda":
                    torch.cuda.empty_cache()
                if key in self._admitted or (had_room and found.no_room):
                    raise found.ours
            self._prepared.keep(key, found)
        elif started is not None:
            self._stand.retire(started)
        return valid(found)

    def _had_room(self, task: Task, config: EvalConfig) -> bool:
        """Whether it was prepared once, here or by another process: with nothing to be timed, that
        all is known says nothing of it.
        """
        timed = not config.verify_only and self._preparer.is_timed(task, config)
        return timed or f"{task.hash}-{config.id}" in self._admitted

    def _prepare_beside(self, key: str, task: Task, config: EvalConfig) -> Preparation:
        """Its reference is loaded while others hold the device."""
        done = self._preparing.setdefault(key, threading.Event())
        try:
            started = self._stand.start_reference(task, config)
            with self._hold(key):
                return self._preparation(key, task, config, started)
        except WorkerFailed as failed:
            error = reference_failed(task, failed)
            known = self._had_room(task, config)
            if known and isinstance(error, NoRoom):
                raise Shortage(str(error)) from None
            if known and failed.failure.kind in (FailureKind.TIMEOUT, FailureKind.DIED):
                raise SandboxFault(str(error)) from None
            if isinstance(error, Died):
                with self._hold(key):
                    return self._preparation(key, task, config)
            raise error from failed
        finally:
            self._preparing.pop(key, None)
            done.set()

    @contextmanager
    def _hold(self, key: str) -> Iterator[None]:
        with self._turns.hold(key):
            # Both are a thread's own.
            if self.device == "cuda":
                torch.cuda.set_device(self._device_index)
            else:
                torch.set_num_threads(1)
            yield
