"""Builds ahead of the run: `load_inline` calls compiled in a walled process without a GPU.

The cache is keyed by candidate and toolchain, never by what the build process says: a hostile build
can only spoil its own candidate. Only this process copies artefacts into it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sandbox import copying
from sandbox.cache import cache_root
from sandbox.device import arch_list, fingerprint
from sandbox.errors import DeviceError
from sandbox.observation import Failure, FailureKind
from sandbox.spawn import WorkerFailed, Zygote
from sandbox.types import SCHEMA_VERSION, Candidate, EvalConfig, Language, digest

LIBRARY_LIMIT_BYTES = 256 << 20
MAX_LIBRARIES = 16


@dataclass(frozen=True)
class BuildReport:
    """What a build made; `failure` is the candidate's fault."""

    seconds: float
    failure: Failure | None = None
    log: str = ""
    artifacts: Path | None = None
    """Folder of numbered `load_inline` results for the run's private copy; None if there are
    none.
    """
    cached: bool = False


def require_compilers(language: Language) -> None:
    """Raise DeviceError, with the remedy, unless this language can be compiled here."""
    if shutil.which("g++") is None:
        raise DeviceError("g++ not found: install a C++ compiler (Debian: apt-get install g++)")
    if language is Language.CUDA_INLINE and shutil.which("nvcc") is None:
        raise DeviceError("nvcc not found: install the CUDA toolkit, or use language cuda (NVRTC)")


class Builder:
    """Compiles candidates of one toolchain; safe to use from several threads and processes."""

    def __init__(self, cache: Path | None = None) -> None:
        arch = os.environ.get("TORCH_CUDA_ARCH_LIST") or arch_list()
        toolchain = digest([fingerprint("cpu"), str(torch.version.cuda), arch, SCHEMA_VERSION])
        self._folder = (cache or cache_root()) / "builds" / toolchain
        self._zygote = Zygote("cpu", environment={"TORCH_CUDA_ARCH_LIST": arch} if arch else {})

    def build(self, candidate: Candidate, config: EvalConfig) -> BuildReport:
        """Compile, or find what an equal candidate compiled to.

        Raises DeviceError where a compiler is missing, SandboxFault for our own faults.
        """
        if not candidate.language.needs_build:
            return BuildReport(0.0)
        target = self._folder / candidate.id
        if target.exists():
            try:
                return _read_report(target)
            except (OSError, ValueError, KeyError, TypeError):
                shutil.rmtree(target, ignore_errors=True)  # damaged: build again
        require_compilers(candidate.language)
        start = time.monotonic()
        report = self._compile(candidate, config, target)
        return replace(report, seconds=time.monotonic() - start)

    def close(self) -> None:
        self._zygote.close()

    def _compile(self, candidate: Candidate, config: EvalConfig, target: Path) -> BuildReport:
        staging = target.with_name(f".{candidate.id}-{os.getpid()}-{secrets.token_hex(4)}")
        staging.mkdir(parents=True)
        worker = self._zygote.spawn(
            "build",
            memory_limit_bytes=config.memory_limit_bytes,
            log_limit_bytes=config.log_limit_bytes,
        )
        failure = None
        try:
            reply = worker.request(
                "build", stage="build", timeout_s=config.build_timeout_s, source=candidate.source
            )
            _keep(worker.scratch, reply, staging)
        except WorkerFailed as failed:
            failure = failed.failure
        except (KeyError, TypeError, ValueError, OSError) as error:
            failure = Failure("build", FailureKind.PROTOCOL, message=f"bad artefacts: {error}")
        finally:
            worker.close()
        log = _log_of(failure, worker.stdout() + worker.stderr(), config.log_limit_bytes)
        if failure is not None and failure.kind is not FailureKind.CLAIMED:
            shutil.rmtree(staging, ignore_errors=True)  # a time-out may be another's load: try anew
            return BuildReport(0.0, failure, log)
        record = {"failure": None if failure is None else asdict(failure), "log": log}
        (staging / "report.json").write_text(json.dumps(record))
        try:
            staging.rename(target)
        except OSError:  # another process built the same candidate first
            shutil.rmtree(staging, ignore_errors=True)
        return replace(_read_report(target), cached=False)


def _keep(source: Path, reply: dict[str, Any], target: Path) -> None:
    """Copy the libraries a build process made; only regular files of sane size, under our own
    names.
    """
    for position, item in enumerate(list(reply["artifacts"])[:MAX_LIBRARIES]):
        folder = target / "artifacts" / str(position)
        folder.mkdir(parents=True)
        (folder / "key").write_text(str(item["key"])[:64])
        with copying.opened_folder(source, f"artifacts/{position}") as made:
            for name in list(item["libraries"])[:MAX_LIBRARIES]:
                plain = Path(str(name)).name
                library = copying.read_regular(made, plain, LIBRARY_LIMIT_BYTES)
                (folder / plain).write_bytes(library)


def _read_report(folder: Path) -> BuildReport:
    record = json.loads((folder / "report.json").read_text())
    failure = record["failure"]
    if failure is not None:
        kind, types = FailureKind(failure["kind"]), tuple(failure["types"])
        failure = Failure(**{**failure, "kind": kind, "types": types})
    artifacts = folder / "artifacts"
    return BuildReport(
        0.0, failure, record["log"], artifacts if artifacts.is_dir() else None, cached=True
    )


def _log_of(failure: Failure | None, printed: str, limit: int) -> str:
    """Compiler output: what was printed, and the message that carries it when a build fails."""
    text = printed if failure is None else f"{printed}\n{failure.message}"
    text = text.strip()
    if len(text) <= limit:
        return text
    return text[: limit // 2] + "\n...\n" + text[-limit // 2 :]


_shared: list[Builder] = []
_lock = threading.Lock()


def build(candidate: Candidate, config: EvalConfig) -> BuildReport:
    """Build with this process's own builder, so that a later evaluation finds the result."""
    with _lock:
        if not _shared:
            _shared.append(Builder())
    return _shared[0].build(candidate, config)
