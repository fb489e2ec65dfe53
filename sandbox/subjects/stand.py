"""Starting the sides of an evaluation on one device: workers, and the models in them."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from sandbox.cleanup import on_failure
from sandbox.machine import cores, memory, pages, proc, processes, queues
from sandbox.machine.device import free_bytes
from sandbox.machine.domains import Domain
from sandbox.machine.gpu_state import GpuState, GpuWatch, undisturbed
from sandbox.machine.handle import Worker, WorkerFailed
from sandbox.machine.quiet import Quiet
from sandbox.machine.ready import PROFILED, Ready, side_of
from sandbox.machine.spawn import Zygote
from sandbox.machine.trees import CLAIM_ERRORS, Layout, Leaf
from sandbox.observation import Failure, FailureKind
from sandbox.subjects.early import Early
from sandbox.subjects.matching import match_state
from sandbox.subjects.signature import Opening, Signature
from sandbox.subjects.subject import SCRAMBLED, Subject
from sandbox.types import Candidate, EvalConfig, Task

logger = logging.getLogger(__name__)

REFERENCE_SHARE = 0.5
"""Of the host's memory, for a reference's worker: its code is the user's own."""
USED_CPU_S = 600.0
"""Of processor time, after which a process serves no other task: one may take an hour in all
(sandbox/machine/spawn.py)."""
STATE_TIMES = 2
"""Parameters that a candidate may hold on the host, converted ones beside the first."""

Started = TypeVar("Started")
AlsoStarted = TypeVar("AlsoStarted")


def _subject_of(started: object) -> Subject:
    found = started[0] if isinstance(started, tuple) else started
    assert isinstance(found, Subject)
    return found


class Stand:
    """Starts subjects for one device: the zygote, and how workers are set up on it."""

    def __init__(self, zygote: Zygote, quiet: Quiet, ready: int = 0, used: int = 0) -> None:
        """`ready` workers of each side are kept waiting, and as many as `used` ones that served a
        reference.
        """
        self.zygote = zygote
        self.quiet = quiet
        self.ready = Ready(zygote, quiet, ready, used)
        self.gpu = GpuWatch(zygote.device_index) if zygote.device == "cuda" else None
        self._closer = ThreadPoolExecutor(1, "closer", initializer=self._use_device)
        self._looker = ThreadPoolExecutor(1, "looker")
        self._lock = threading.Lock()
        self._closing: list[Future[None]] = []
        self._early: dict[Subject, int] = {}
        """Bytes of a GPU that those have whose turn has not begun."""

    def _use_device(self) -> None:
        """A thread's current GPU is its own, and the first one until it says so."""
        if self.zygote.device == "cuda":
            torch.cuda.set_device(self.zygote.device_index)

    @contextlib.contextmanager
    def undisturbed(self, looking: Future[GpuState] | None = None) -> Iterator[None]:
        """Around a pair: raises SandboxFault where the GPU was disturbed meanwhile, or since
        `looking` at it began, and keeps the core awake that launches.
        """
        core = self.zygote.launching_core
        awake = contextlib.nullcontext() if core is None else core.kept_awake()
        with undisturbed(self.gpu, looking), awake:
            yield

    def look(self) -> Future[GpuState] | None:
        """At the GPU, in the background; the driver may take milliseconds to answer."""
        return None if self.gpu is None else self._looker.submit(self.gpu.look)

    def retire(self, subject: Subject) -> Future[None]:
        """Close a subject in the background, though not while a figure to be reported is timed: the
        driver takes a while to unmap a dead context.
        """
        with self._lock:
            closing = self._closer.submit(self._close, subject)
            self._closing.append(closing)
        return closing

    def reuse(self, subject: Subject) -> Future[None]:
        """Have a reference's process serve other tasks, or close it: in the background."""
        with self._lock:
            closing = self._closer.submit(self._leave, subject)
            self._closing.append(closing)
        return closing

    def _close(self, subject: Subject) -> None:
        try:
            with self.quiet.murmur():
                subject.close()
        finally:
            self._gone(subject)

    def _leave(self, subject: Subject) -> None:
        with self.quiet.murmur():
            kept = False
            try:
                kept = self._is_left(subject) and self.ready.give_back(subject.worker)
            finally:
                if not kept:
                    subject.close()

    def _is_left(self, subject: Subject) -> bool:
        """Whether nothing is left of its task in the process, which has time left."""
        pid, spent_s = subject.worker.pid, proc.cpu_seconds(subject.worker.pid)
        if not self.ready.keeps_used or spent_s is None or spent_s > USED_CPU_S:
            return False
        try:
            if self.zygote.launching_core is not None:  # it was placed there to be timed
                processes.confine(pid, cores.common_cores())
            left = subject.leave()
        except (WorkerFailed, OSError) as failed:
            left = [str(failed)]
        if left:
            logger.info("a worker serves no other task: %s", ", ".join(left[:3]))
        return not left

    def settle(self) -> None:
        """Wait until every retired subject is gone; raises SandboxFault for one that survives."""
        with self._lock:
            closing, self._closing = self._closing, []
        start = time.perf_counter()
        for future in closing:
            future.result()  # a fault is raised by whoever settles first
        logger.debug("settled in %.1f ms", (time.perf_counter() - start) * 1e3)

    def start_both(
        self, first: Callable[[], Started], second: Callable[[], AlsoStarted]
    ) -> tuple[Started, AlsoStarted]:
        """Two starts side by side; if either fails, what the other started is retired."""
        with ThreadPoolExecutor(1, "starter") as pool:
            other = pool.submit(second)
            with on_failure(lambda: self._retire_result(other)):
                one = first()
            with on_failure(lambda: self.retire(_subject_of(one))):
                return one, other.result()

    def _retire_result(self, started: Future[AlsoStarted]) -> None:
        if started.exception() is None:
            self.retire(_subject_of(started.result()))

    def reference(
        self,
        task: Task,
        config: EvalConfig,
        opening: Opening,
        preload: Sequence[tuple[Path, str]] = (),
        *,
        fresh: bool = False,
    ) -> tuple[Subject, Signature]:
        """A reference worker, its model open, and what it looks like; while others are timed it may
        stand still. `fresh` as for `start_reference`.
        """
        subject = self.start_reference(task, config, preload, fresh=fresh)
        with on_failure(lambda: self.retire(subject)), self.quiet.beside(subject.worker):
            return subject, self.open_reference(subject, opening)

    def start_reference(
        self,
        task: Task,
        config: EvalConfig,
        preload: Sequence[tuple[Path, str]] = (),
        *,
        fresh: bool = False,
    ) -> Subject:
        """A reference worker with the task loaded: host work. Its process may have served another
        task, unless it is to be `fresh`.
        """
        used = None if fresh else self.ready.take_used()
        if used is not None:
            try:
                return self._subject("reference", task, config, task.source, preload, used=used)
            except WorkerFailed as failed:  # what is there already, say, is registered once more
                logger.info("a process does not serve another task: %s", failed)
        return self._subject("reference", task, config, task.source, preload)

    def open_reference(self, subject: Subject, opening: Opening) -> Signature:
        """What its calls take and return, by the worker's word; as known, where it was opened
        before. Raises WorkerFailed where the reference fails.
        """
        task, limit = subject.task, subject.config.run_timeout_s
        seed = secrets.randbits(31) if opening.known is None else opening.known.seed
        opened = subject.request(
            "open",
            limit,
            constants=task.shapes[opening.shape].constants,
            seed=seed,
            state_seed=secrets.randbits(31) if opening.randomise else None,
            wrap=opening.wrap,
            describe=opening.known is None,
        )
        if opening.known is not None:
            return opening.known
        seen = subject.request("examine", limit, seed=secrets.randbits(31))
        return Signature(
            shape=opening.shape,
            seed=seed,
            init=opened["init"],
            input_tree=opened["inputs"]["tree"],
            inputs=tuple(map(Leaf.from_json, opened["inputs"]["leaves"])),
            domains=tuple(map(Domain, seen["domains"])),
            state=tuple((name, Leaf.from_json(leaf)) for name, leaf in opened["state"]),
            output_tree=seen["outputs"]["tree"],
            outputs=tuple(map(Leaf.from_json, seen["outputs"]["leaves"])),
            classes=tuple(seen["outputs"]["classes"]),
            repeatable=seen["repeatable"],
            mutates=seen["mutates"],
            moves_state=seen["moves_state"],
            aliases=seen["aliases"],
            lends=seen["lends"],
            latency_s=seen["latency_s"],
            fill_s=seen["fill_s"],
        )

    def paced(self, subject: Subject, signature: Signature) -> Signature:
        """The same, with how long things take now."""
        limit_s = subject.config.run_timeout_s
        seen = subject.request("pace", limit_s, seed=secrets.randbits(31))
        return replace(signature, latency_s=seen["latency_s"], fill_s=seen["fill_s"])

    def candidate(
        self,
        task: Task,
        candidate: Candidate,
        config: EvalConfig,
        preload: Sequence[tuple[Path, str]] = (),
        *,
        role: str = "candidate",
        first: Signature | None = None,
        early: Early | None = None,
        then_stop: bool = False,
    ) -> Subject:
        """A fresh worker with the candidate loaded, and frozen if it is to wait; raises
        WorkerFailed for its faults. `role` may be `profiled` (sandbox/machine/ready.py) or
        `searched` (sandbox/machine/queues.py). `first`: what it will be opened for, so that it
        constructs its model already. `early`: arenas that it has already, if there is memory for
        them.
        """
        return self._subject(
            role,
            task,
            config,
            candidate.source,
            preload,
            first=first,
            early=early,
            then_stop=then_stop,
        )

    def open_candidate(self, subject: Subject, signature: Signature) -> str:
        """Build ModelNew as the reference was built; returns how its state was matched."""
        claim = subject.request("open", subject.config.load_timeout_s, **made_from(signature))
        try:
            how, names = match_state(signature.state, claim["state"])
        except CLAIM_ERRORS as error:
            failure = Failure(subject.stage, FailureKind.PROTOCOL, message="a state that is none")
            raise WorkerFailed(failure) from error
        subject.request("bind", subject.config.load_timeout_s, names=names)
        return how

    def begin(self, subject: Subject, first: Signature) -> None:
        """The turn of a candidate that was loaded. The memory that its worker may hold is for this
        model: it may have been loaded before the reference told of its parameters.
        """
        self._gone(subject)
        subject.worker.memory_limit_bytes = memory_limit("candidate", subject.config, first)

    def _subject(
        self,
        role: str,
        task: Task,
        config: EvalConfig,
        source: str,
        preload: Sequence[tuple[Path, str]],
        *,
        first: Signature | None = None,
        early: Early | None = None,
        then_stop: bool = False,
        used: Worker | None = None,
    ) -> Subject:
        """A worker with the source loaded: host work, which may go on beside what is timed. `used`:
        the one to load it in.
        """
        limit_bytes = memory_limit(role, config, first)
        worker = used or self.ready.take(role)
        armed = worker is not None
        if worker is not None:
            with on_failure(worker.close), self.quiet.noise():
                worker.furnish(preload)
                worker.limit(limit_bytes, config.log_limit_bytes)
        else:
            worker = self.zygote.spawn(
                side_of(role),
                memory_limit_bytes=limit_bytes,
                log_limit_bytes=config.log_limit_bytes,
                preload=preload,
                environment=queues.environment(role),
                quiet=self.quiet,
            )
        subject = Subject(worker, task, config, "reference" if role == "reference" else "load")
        with (
            on_failure(lambda: self.retire(subject)),
            self.quiet.beside(worker, then_stop=then_stop),
        ):
            subject.setup(self.zygote.threads)
            if role == PROFILED and not armed:
                subject.request("arm", config.load_timeout_s)
            subject.load(source)
            if first is not None:
                subject.request("construct", config.load_timeout_s, **made_from(first))
            if early is not None:
                self._give(subject, early)
        return subject

    def _give(self, subject: Subject, early: Early) -> None:
        """What it will be verified with, unless memory is short. The driver's calls go on beside
        what a search times, as others' contexts do; filling memory does not.
        """
        with self._lock:
            if sum(self._early.values()) + early.bytes > early.within:
                return
            self._early[subject] = early.bytes
        self._use_device()
        try:
            with self.quiet.murmur():
                if free_bytes(subject.task.device) < early.least_free:
                    raise memory.OutOfMemoryError("a large task may need what there is")
                subject.take_room(early.sizes)
        except (memory.OutOfMemoryError, torch.OutOfMemoryError):
            self._gone(subject)
            return
        subject.given_bytes = early.bytes
        with self.quiet.noise():
            subject.blank_room()
        with self.quiet.murmur():
            subject.attach_all(early.first, early.calls, early.calls)
            if early.rung_for is not None:
                subject.attach(SCRAMBLED, Layout(early.rung_for.inputs, 1))
            if early.outputs:
                subject.reserve_bytes(early.outputs)

    def _gone(self, subject: Subject) -> None:
        """From those who wait with memory of a GPU."""
        with self._lock:
            self._early.pop(subject, None)


def memory_limit(role: str, config: EvalConfig, first: Signature | None) -> int:
    """Bytes of host memory for a worker: parameters come on top of what the config allows, since
    they are made there (KernelBench's level3/2 has 8 GiB); how large, a reference tells first.
    """
    if role == "reference":
        return max(config.memory_limit_bytes, int(REFERENCE_SHARE * pages.usable_bytes()))
    state_bytes = 0 if first is None else first.state_bytes
    return config.memory_limit_bytes + STATE_TIMES * state_bytes


def made_from(signature: Signature) -> dict[str, Any]:
    """What a candidate's model is constructed from."""
    return {"init": signature.init, "seed": signature.seed}
