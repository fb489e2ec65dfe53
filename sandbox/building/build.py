"""Builds ahead of the run: `load_inline` calls and Triton's kernels compiled in a walled process
without a GPU.

The cache is keyed by source and toolchain, never by what the build process says: a hostile build
can only spoil its own candidate. Only this process copies artefacts into it. Equal sources are
built once, also by several processes at a time: the others wait.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sandbox.building.build_report import BuildReport, read_report, write_file, write_report
from sandbox.building.included import included, unchanged
from sandbox.building.language import builds_late
from sandbox.building.light import Ways
from sandbox.building.preludes import Preludes
from sandbox.building.toolchain import capability, require_compilers, toolchain
from sandbox.cache import FORBIDDEN, LIMITS, Shelf, cache_root, discard, locked, temporary_of
from sandbox.cleanup import on_failure
from sandbox.errors import SandboxFault
from sandbox.machine import copying
from sandbox.machine.device import arch_list
from sandbox.machine.handle import Worker, WorkerFailed
from sandbox.machine.killed import was_killed
from sandbox.machine.quiet import Quiet
from sandbox.machine.scratch import scratch_name, scratch_root
from sandbox.machine.spawn import Zygote
from sandbox.observation import Failure, FailureKind
from sandbox.types import Candidate, EvalConfig, Language, Task, digest
from sandbox.walls.folders import ARTIFACTS, TRITON_CACHE

logger = logging.getLogger(__name__)

FORESEEING = ("torch._dynamo", "triton.language")
"""What a process imports that compiles Triton's kernels ahead; this takes seconds."""

CACHE_LIMIT = 512 << 20
"""Bytes of a candidate's Triton or cupy cache handed to its workers."""
AHEAD_S = 60.0
"""For Triton's kernels, all configurations that an autotuner would try included."""
LIBRARY_LIMIT_BYTES = 256 << 20
MAX_LIBRARIES = 16
NAMES_HEADERS = re.compile(r"extra_include_paths|-isystem|-I")
"""In a source whose extension includes files of the machine's."""
SAID = 4000
"""Characters that are kept of why an extension does not compile that is built late."""


class Builder:
    """Compiles candidates of one toolchain; safe to use from several threads and processes."""

    least_free_bytes = 64 << 20
    """On the disk of the scratch folders, below which a failed build says nothing."""

    def __init__(
        self,
        cache: Path | None = None,
        ways: Ways = Ways(),  # noqa: B008  frozen
        quiet: Quiet | None = None,
        zygote: Zygote | None = None,
    ) -> None:
        """`quiet` is that of the device, where builds go on beside measurements. `zygote`: the
        device's; one for the CPU serves builds as well where no architecture is to be told.
        """
        self._quiet = quiet or Quiet(same_cores=False)
        arch = os.environ.get("TORCH_CUDA_ARCH_LIST") or arch_list()
        root = cache or cache_root()
        self._ways = ways
        self._capability = capability(arch)
        self._described: dict[str, list[Any] | None] = {}
        """By task, what its calls are made from."""
        self._toolchain = digest(toolchain(arch, ways))
        self._folder = root / "builds"
        self._shelf = Shelf(self._folder, LIMITS["builds"])
        self._shared: Shelf | None = None
        """Of a cache that may only be read, while the other one is this process's."""
        self._apart: tempfile.TemporaryDirectory[str] | None = None
        self._moving = threading.Lock()
        environment = {"TORCH_CUDA_ARCH_LIST": arch} if arch else {}
        shares = zygote is not None and zygote.device == "cpu" and not environment
        self._zygote = zygote if zygote and shares else Zygote("cpu", environment=environment)
        self._foreseeing = Zygote("cpu", imports=FORESEEING, environment=environment)
        """Begun by the first Triton candidate, or one that builds late: no other waits for its
        imports."""
        self._preludes = Preludes(root / "preludes", self._zygote, self._quiet)

    def build(
        self, candidate: Candidate, config: EvalConfig, task: Task | None = None
    ) -> BuildReport:
        """Compile, or find what an equal candidate compiled to.

        `task`: whose inputs Triton's kernels are compiled for. Raises DeviceError where a compiler
        is missing, SandboxFault for our own faults.
        """
        asked = [self._toolchain, candidate.language.value, candidate.source]
        if candidate.language is Language.TRITON:
            if task is None or self._capability is None:
                return BuildReport(0.0)
        elif not candidate.language.needs_build:
            return BuildReport(0.0)
        elif task is not None and not self._rehearsed(task, candidate):
            task = None  # which makes no difference to what is built
        if task is not None:
            asked.append(task.hash)
        key = digest(asked, 64)  # one candidate's binary is never another's
        known = self._known(key)
        if known is not None:
            return known
        require_compilers(candidate.language)
        start = time.monotonic()
        folder = self._folder
        try:
            report = self._built_once(candidate, config, task, key)
        except OSError as error:
            if error.errno not in FORBIDDEN:
                raise
            with self._moving:
                if self._apart is None:
                    self._keep_apart(error)
            if folder == self._folder:
                raise
            report = self._built_once(candidate, config, task, key)
        return replace(report, seconds=time.monotonic() - start)

    def _keep_apart(self, error: OSError) -> None:
        """A cache that may only be read, as another user's, is read; what is built is this
        process's.
        """
        logger.warning("%s: what is built is not kept (%s)", self._folder, error.strerror)
        root = scratch_root()
        self._apart = tempfile.TemporaryDirectory(prefix=f"{scratch_name(root)}-", dir=root)
        self._shared, self._folder = self._shelf, Path(self._apart.name)
        self._shelf = Shelf(self._folder, LIMITS["builds"])

    def _built_once(
        self, candidate: Candidate, config: EvalConfig, task: Task | None, key: str
    ) -> BuildReport:
        lock = self._folder / f".{key}.lock"
        with locked(lock):
            try:
                return self._known(key) or self._compile(candidate, config, task, key)
            finally:
                lock.unlink(missing_ok=True)  # whoever waits for it holds the file, not its name

    def warm(self) -> None:
        """Start the process that build processes are forked from; else the first build does."""
        self._zygote.start()

    def settle(self) -> None:
        """Wait for precompiled headers that are being made for later builds."""
        self._preludes.settle()

    def close(self) -> None:
        self._zygote.close()
        self._foreseeing.close()
        if self._apart is not None:
            self._apart.cleanup()

    def _known(self, key: str) -> BuildReport | None:
        """What was built before; None for a miss."""
        places = (self._shelf, self._shared)
        found = next(filter(None, (p.find(key) for p in places if p is not None)), None)
        if found is None:
            return None
        try:
            report = read_report(found)
            if unchanged(report.included):
                return report
        except (OSError, ValueError, KeyError, TypeError):
            pass
        discard(found)  # damaged, or a header is another one now: build again
        return None

    def _compile(
        self, candidate: Candidate, config: EvalConfig, task: Task | None, key: str
    ) -> BuildReport:
        staging = temporary_of(self._folder / key)
        staging.mkdir(parents=True)
        with on_failure(lambda: shutil.rmtree(staging, ignore_errors=True)):
            if candidate.language is Language.TRITON:
                assert task is not None
                return self._foresee_to(staging, candidate, config, task, key)
            return self._compile_to(staging, candidate, config, task, key)

    def _rehearsed(self, task: Task, candidate: Candidate) -> bool:
        """Whether it is to be constructed and called as well, for extensions built only then."""
        known = self._capability is not None or task.device == "cpu"
        return known and builds_late(candidate.source)

    def _worker(self, zygote: Zygote, config: EvalConfig) -> Worker:
        return zygote.spawn(
            "build",
            memory_limit_bytes=config.memory_limit_bytes,
            log_limit_bytes=config.log_limit_bytes,
            readable=[self._preludes.folder],
            quiet=self._quiet,
        )

    def _foresee_to(
        self, staging: Path, candidate: Candidate, config: EvalConfig, task: Task, key: str
    ) -> BuildReport:
        """Whatever goes wrong here says nothing: the run compiles, and has its own errors. It would
        go wrong again, so that what there is, if anything, is kept.
        """
        calls = self._calls(task, config)
        if calls is not None:
            worker = self._worker(self._foreseeing, config)
            try:
                said = self._ask(
                    worker,
                    config,
                    "foresee",
                    source=candidate.source,
                    calls=calls,
                    dtype=task.dtype,
                )
                logger.debug("%s compiled ahead: %s", candidate.id, said)
                copying.copy_folder(worker.scratch, TRITON_CACHE, staging / "kernels", CACHE_LIMIT)
            except (OSError, ValueError) as problem:
                logger.debug("%s: nothing was compiled ahead: %s", candidate.id, problem)
                shutil.rmtree(staging / "kernels", ignore_errors=True)
            finally:
                with self._quiet.noise():
                    worker.close()
        write_report(staging, None, "")
        return replace(read_report(self._shelf.put(key, staging)), cached=False)

    def _calls(self, task: Task, config: EvalConfig) -> list[Any] | None:
        """What calls of the task are made from, found once; None where that cannot be told."""
        if task.hash not in self._described:
            worker = self._worker(self._calling, config)
            try:
                shapes = [shape.constants for shape in task.shapes]
                said = self._ask(worker, config, "describe", task=task.source, shapes=shapes)
            finally:
                with self._quiet.noise():
                    worker.close()
            self._described[task.hash] = None if said is None else said["calls"]
        return self._described[task.hash]

    @property
    def _calling(self) -> Zygote:
        """What processes that call a candidate are forked from: without a GPU's compilers there is
        nothing to import ahead.
        """
        return self._zygote if self._capability is None else self._foreseeing

    def _ask(self, worker: Worker, config: EvalConfig, op: str, **fields: Any) -> Any:
        """What a worker answers; None where it does not."""
        try:
            with self._quiet.beside(worker, on_host=True):
                limit_s = min(config.build_timeout_s, AHEAD_S)
                return worker.request(
                    op, stage="build", timeout_s=limit_s, capability=self._capability, **fields
                )
        except WorkerFailed as failed:
            logger.debug("%s: %s", op, failed)
            return None

    def _compile_to(
        self,
        staging: Path,
        candidate: Candidate,
        config: EvalConfig,
        task: Task | None,
        key: str,
    ) -> BuildReport:
        # Described first: this may start the process that calls are rehearsed in.
        calls = None if task is None else self._calls(task, config)
        worker = self._worker(self._zygote if calls is None else self._calling, config)
        failure, missing, whole = None, None, True
        headers: dict[str, str] = {}
        try:
            with self._quiet.beside(worker, on_host=True):
                reply = worker.request(
                    "build",
                    stage="build",
                    timeout_s=config.build_timeout_s,
                    source=candidate.source,
                    ways=asdict(self._ways),
                    preludes=str(self._preludes.folder),
                )
            self._keep(worker.scratch, reply, staging)
            headers |= included(reply["artifacts"], worker.scratch)
            missing = reply.get("missing")
            if task is not None and calls is not None:
                more, whole = self._rehearse(
                    worker, candidate, config, task, calls, staging, headers
                )
                missing = more or missing
        except WorkerFailed as failed:
            failure = failed.failure
            self._refuse_full_disk(worker.scratch)
        except (KeyError, TypeError, ValueError, OSError) as error:
            failure = Failure("build", FailureKind.PROTOCOL, message=f"bad artefacts: {error}")
        finally:
            with self._quiet.noise():
                worker.close()
        self._preludes.ask(missing, config)
        log = _log_of(failure, worker.stdout() + worker.stderr(), config.log_limit_bytes)
        if failure is not None and _by_chance(failure):
            shutil.rmtree(staging, ignore_errors=True)
            return BuildReport(0.0, failure, log)
        write_report(staging, failure, log, headers)
        if failure is not None and NAMES_HEADERS.search(candidate.source):
            whole = False  # which folders it named is not known, nor what is missing there
        # For this run alone where time was short: another may have what is missing.
        name = key if whole else f"{key}-{secrets.token_hex(4)}"
        return replace(read_report(self._shelf.put(name, staging)), cached=False)

    def _rehearse(
        self,
        worker: Worker,
        candidate: Candidate,
        config: EvalConfig,
        task: Task,
        calls: list[Any],
        staging: Path,
        headers: dict[str, str],
    ) -> tuple[list[Any] | None, bool]:
        """What compiles when the candidate is constructed or called is kept as well. Nothing rests
        on it: whatever goes wrong here says nothing, the run compiles. Returns preludes to make,
        and whether there was time for all.
        """
        known = len(list((staging / ARTIFACTS).glob("*")))
        try:
            with self._quiet.beside(worker, on_host=True):
                reply = worker.request(
                    "rehearse",
                    stage="build",
                    timeout_s=config.build_timeout_s,
                    source=candidate.source,
                    calls=calls,
                    dtype=task.dtype,
                    capability=self._capability if task.device == "cuda" else None,
                )
            logger.debug("%s rehearsed: %s", candidate.id, reply.get("problem"))
            self._keep(worker.scratch, reply, staging, known)
            headers |= included(reply["artifacts"], worker.scratch)
            return list(reply["missing"]), True
        except WorkerFailed as failed:
            logger.debug("%s was not rehearsed: %s", candidate.id, failed)
            return None, failed.failure.kind is not FailureKind.TIMEOUT
        except (KeyError, TypeError, ValueError, OSError) as problem:
            logger.debug("%s was not rehearsed: %s", candidate.id, problem)
            return None, True

    def _keep(self, source: Path, reply: dict[str, Any], target: Path, known: int = 0) -> None:
        """Copy the libraries a build process made after the first `known`; only regular files of
        sane size, under our own names. Raises SandboxFault where they cannot be written, or where a
        compiler had no room.
        """
        if any("failed" in item for item in reply["artifacts"]):
            self._refuse_full_disk(source)
        for position, item in enumerate(list(reply["artifacts"])[:MAX_LIBRARIES], known):
            folder = target / ARTIFACTS / str(position)
            write_file(folder / "key", str(item["key"])[:64].encode(errors="replace"))
            if "failed" in item:
                write_file(folder / "failed", str(item["failed"])[:SAID].encode(errors="replace"))
                continue
            with copying.opened_folder(source, f"{ARTIFACTS}/{position}") as made:
                for name in list(item["libraries"])[:MAX_LIBRARIES]:
                    plain = Path(str(name)).name
                    library = copying.read_regular(made, plain, LIBRARY_LIMIT_BYTES)
                    write_file(folder / plain, library)

    def _refuse_full_disk(self, scratch: Path) -> None:
        """A compiler that finds no room fails like one that finds an error: that is looked at here,
        while the files it left are there.
        """
        free = shutil.disk_usage(scratch).free
        if free < self.least_free_bytes:
            raise SandboxFault(
                f"{scratch.parent}: {free >> 20} MiB are free, too little to compile: free some"
            )


def _by_chance(failure: Failure) -> bool:
    """Whether it may be another's doing, as a time-out is on a busy machine: tried anew."""
    return failure.kind is not FailureKind.CLAIMED or was_killed(failure.message)


def _log_of(failure: Failure | None, printed: str, limit: int) -> str:
    """Compiler output: what was printed, and the message that carries it when a build fails."""
    text = printed if failure is None else f"{printed}\n{failure.message}"
    text = text.strip()
    if len(text) <= limit:
        return text
    return text[: limit // 2] + "\n...\n" + text[-limit // 2 :]


_shared: list[Builder] = []
_lock = threading.Lock()


def build(candidate: Candidate, config: EvalConfig, task: Task | None = None) -> BuildReport:
    """Build with this process's own builder, so that a later evaluation finds the result."""
    with _lock:
        if not _shared:
            _shared.append(Builder())
    return _shared[0].build(candidate, config, task)
