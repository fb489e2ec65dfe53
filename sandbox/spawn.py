"""The supervisor's side of workers: start a zygote, fork workers from it, talk to them, end
them.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sandbox import processes
from sandbox.channel import Channel, ChannelClosed, ChannelProtocol, ChannelTimeout
from sandbox.errors import SandboxFault
from sandbox.logs import Log
from sandbox.observation import Failure, FailureKind
from sandbox.slots import Slot
from sandbox.walls.folders import prepare_scratch, scratch_environment

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""For the zygote to import torch: 1.4 s here, 4 s on a GPU machine, far longer on a cold disk."""


class WorkerFailed(Exception):
    """A worker did not answer as its harness would; carries the Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.stage}: {failure.kind.value}: {failure.message[:200]}")
        self.failure = failure


class Zygote:
    """One warm process per lane; restarted when it dies. Safe to use from several threads."""

    def __init__(
        self,
        device: str,
        device_index: int = 0,
        *,
        environment: Mapping[str, str] | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        """`imports` are modules to load before any fork, beside torch."""
        self._imports = tuple(imports)
        self._environment = dict(environment or {})
        self.device = device
        self.device_index = device_index
        self.threads = min(len(os.sched_getaffinity(0)), 32)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self.root = _scratch_root()

    def start(self) -> None:
        """Start the process now; otherwise the first spawn does."""
        with self._lock:
            self._ensure()

    def spawn(
        self,
        role: str,
        *,
        memory_limit_bytes: int,
        log_limit_bytes: int = 16 << 10,
        preload: Sequence[tuple[Path, str]] = (),
    ) -> Worker:
        """Fork a worker with walls up; raises SandboxFault when that fails.

        `preload` are folders to copy into its scratch folder, each with its place there.
        """
        with self._lock:
            control = self._ensure()
            slot = Slot() if os.geteuid() == 0 else None
            uid = None if slot is None else slot.uid
            scratch = self.root / f"{os.getpid()}-{secrets.token_hex(6)}"
            _make_scratch(scratch, preload, uid)
            ours, theirs = socket.socketpair()
            nonce = secrets.token_hex(16)
            out, err = Log(log_limit_bytes), Log(log_limit_bytes)
            request = {
                "op": "spawn",
                "role": role,
                "nonce": nonce,
                "scratch": str(scratch),
                "uid": uid,
                "devices": self.device == "cuda" and role != "build",
                "readable": readable_folders(),
                "environment": scratch_environment(scratch),
                "limits": {"cpu_seconds": 3600, "file_bytes": 2 << 30, "processes": 512},
            }
            try:
                control.send(request, [theirs.fileno(), out.write_fd, err.write_fd])
                pid = control.receive(START_TIMEOUT_S)["pid"]
            except (ChannelClosed, ChannelTimeout, ChannelProtocol) as error:
                self._end()
                ours.close()
                shutil.rmtree(scratch, ignore_errors=True)
                raise SandboxFault(f"the zygote did not fork a worker: {error}") from error
            finally:
                theirs.close()
                out.started()
                err.started()
        worker = Worker(self, pid, Channel(ours, nonce), scratch, slot, (out, err))
        worker.memory_limit_bytes = memory_limit_bytes
        worker.greet()
        return worker

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """A dead worker's raw wait status, or None if it is not known."""
        with self._lock:
            if self._control is None:
                return None
            try:
                self._control.send({"op": "wait", "pid": pid, "timeout_s": timeout_s})
                status = self._control.receive(timeout_s + 10)["status"]
            except (ChannelClosed, ChannelTimeout, ChannelProtocol):
                return None
        return None if status is None else int(status)

    @property
    def pid(self) -> int | None:
        """Of the living process; None where there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def close(self) -> None:
        """End the zygote; its workers die with it."""
        with self._lock:
            self._end()

    def _ensure(self) -> Channel:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._end()
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sandbox.zygote", str(theirs.fileno()), *self._imports],
            pass_fds=[theirs.fileno()],
            env=zygote_environment(self.device, self.device_index, self.threads)
            | self._environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._control = Channel(ours, "zygote")
        try:
            self._control.receive(START_TIMEOUT_S)
        except (ChannelClosed, ChannelTimeout, ChannelProtocol) as error:
            self._end()
            raise SandboxFault("the zygote process did not start; see its output above") from error
        return self._control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class Worker:
    """One forked process. Every request has a deadline; a worker that fails is killed with its
    tree.
    """

    memory_limit_bytes = 8 << 30
    arena_bytes = 0
    """Of host arenas shared with it, which are not charged to it."""

    def __init__(
        self,
        zygote: Zygote,
        pid: int,
        channel: Channel,
        scratch: Path,
        slot: Slot | None,
        logs: tuple[Log, Log],
    ) -> None:
        self.pid = pid
        self.scratch = scratch
        self.walls: dict[str, Any] = {}
        self._zygote = zygote
        self._channel = channel
        self._born_of = zygote.pid
        self._slot = slot
        self._uid = None if slot is None else slot.uid
        self._logs = logs
        self._alive = True

    def greet(self) -> None:
        """Wait for the hello that says the walls are up."""
        start = time.perf_counter()
        try:
            self.walls = self._channel.receive(START_TIMEOUT_S)["walls"]
            logger.debug("%d up in %.1f ms", self.pid, (time.perf_counter() - start) * 1e3)
        except (ChannelClosed, ChannelTimeout, ChannelProtocol) as error:
            words = self.stderr()
            self.close()
            raise SandboxFault(f"a worker did not start: {error} {words}".strip()) from error

    def request(
        self, op: str, *, stage: str, timeout_s: float, fds: Sequence[int] = (), **fields: Any
    ) -> dict[str, Any]:
        """One round trip; raises WorkerFailed (and kills the tree) when no proper reply comes."""
        start = time.perf_counter()
        self.send(op, stage=stage, fds=fds, **fields)
        reply = self.reply(stage=stage, timeout_s=timeout_s)
        logger.debug("%d %s %s: %.1f ms", self.pid, stage, op, (time.perf_counter() - start) * 1e3)
        return reply

    def send(self, op: str, *, stage: str, fds: Sequence[int] = (), **fields: Any) -> None:
        try:
            self._channel.send({"op": op, **fields}, fds)
        except ChannelClosed:
            raise self._died(stage) from None

    def reply(self, *, stage: str, timeout_s: float) -> dict[str, Any]:
        try:
            body = self._channel.receive(timeout_s, self._watch)
        except ChannelTimeout:
            raise self._failed(
                stage, FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s"
            ) from None
        except ChannelClosed:
            raise self._died(stage) from None
        except ChannelProtocol as error:
            raise self._failed(stage, FailureKind.PROTOCOL, str(error)) from None
        except _TooMuchMemory as error:
            raise self._failed(stage, FailureKind.MEMORY, str(error)) from None
        if isinstance(body, dict) and isinstance(body.get("ok"), dict):
            return dict(body["ok"])
        if isinstance(body, dict) and isinstance(body.get("error"), dict):
            raise WorkerFailed(_claimed(stage, body["error"]))
        raise self._failed(stage, FailureKind.PROTOCOL, "a reply that is no reply")

    def spread(self) -> None:
        """Pin the worker's threads to the cores in turn, one each."""
        processes.spread_threads(self.pid)

    def freeze(self) -> None:
        """Stop the whole process tree, so that it cannot disturb a measurement."""
        processes.freeze_tree(self.pid)

    def thaw(self) -> None:
        processes.thaw_tree(self.pid)

    def stdout(self) -> str:
        return self._logs[0].text()

    def stderr(self) -> str:
        return self._logs[1].text()

    def close(self) -> None:
        """Kill the tree, reap it, remove its scratch folder."""
        if not self._alive:
            return
        self._alive = False
        processes.kill_tree(self.pid, self._uid)
        self._channel.close()
        self._zygote.wait(self.pid, 0.0)
        if self._slot is not None:
            self._slot.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _watch(self) -> None:
        used = processes.tree_memory_bytes(self.pid, self.arena_bytes)
        if used > self.memory_limit_bytes:
            limit = self.memory_limit_bytes >> 20
            raise _TooMuchMemory(f"{used >> 20} MiB of host memory; the limit is {limit} MiB")

    def _died(self, stage: str) -> WorkerFailed:
        status = self._zygote.wait(self.pid, 2.0)
        if status is None and self._zygote.pid != self._born_of:
            raise SandboxFault("the zygote died, and its workers with it")
        if status is None:
            words = "the process ended"
        elif os.WIFSIGNALED(status):
            words = f"killed by {signal_name(os.WTERMSIG(status))}"
        else:
            words = f"exited with code {os.WEXITSTATUS(status)} before it replied"
        return self._failed(stage, FailureKind.DIED, words)

    def _failed(self, stage: str, kind: FailureKind, message: str) -> WorkerFailed:
        processes.kill_tree(self.pid, self._uid)
        return WorkerFailed(Failure(stage, kind, message=message))


class _TooMuchMemory(Exception):
    pass


def signal_name(number: int) -> str:
    """`SIGSEGV`, or `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _claimed(stage: str, error: dict[str, Any]) -> Failure:
    listed = error.get("types")
    types = tuple(_text(t)[:100] for t in (listed if isinstance(listed, list) else [])[:16])
    message, trace = _text(error.get("message", ""))[:4000], _text(error.get("trace", ""))[-4000:]
    return Failure(stage, FailureKind.CLAIMED, types, message, trace)


def _text(claimed: object) -> str:
    """As UTF-8 can store it: JSON may carry lone surrogates."""
    return str(claimed).encode(errors="replace").decode()


def zygote_environment(device: str, index: int, threads: int) -> dict[str, str]:
    """A scrubbed environment: no secret of the caller's reaches a worker."""
    keep = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "LANG", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = visible.split(",")[index] if visible else str(index)
    environment |= {
        "PATH": _tool_path(),
        "PYTHONPATH": os.pathsep.join(_source_folders()),
        "CUDA_VISIBLE_DEVICES": chosen if device == "cuda" else "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_NUM_THREADS": str(threads),
        # Idle OpenMP threads spin for about 150 us, not libgomp's 5 ms and more: one side's would
        # otherwise run on into the other side's turn on the same cores.
        "GOMP_SPINCOUNT": "10000",
        # Freed memory stays with the process, on both sides: glibc would return a batch's outputs
        # to
        # the system and fault every page in again, at moments of its own choosing.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MAX_JOBS": str(max(threads, 2)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "USER": "worker",
        # Asking for a device through NVML leaves later forks able to use it.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "LOGNAME": "worker",
        # cupy fixes its cache folder when the zygote imports it; NVRTC is quick enough without.
        "CUPY_CACHE_IN_MEMORY": "1",
    }
    return environment


def readable_folders() -> list[str]:
    """What a worker may read beside the system folders: the interpreter's and our own packages."""
    paths = {sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), *_source_folders()}
    paths |= {p for p in sys.path if "site-packages" in p or "dist-packages" in p}
    if os.environ.get("CUDA_HOME"):
        paths.add(os.environ["CUDA_HOME"])
    return sorted(p for p in paths if p and Path(p).is_dir())


def _source_folders() -> list[str]:
    folders = [str(Path(__file__).resolve().parent.parent)]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return folders + [str(Path(p).resolve()) for p in inherited if p]


def _tool_path() -> str:
    folders = [str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(f for f in folders if f))


def _scratch_root() -> Path:
    """Where scratch folders live; those of dead supervisors are removed."""
    base = Path(os.environ.get("WARPSMITH_SCRATCH", "/var/tmp"))
    root = base / f"warpsmith-{os.geteuid()}"
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o711)
    for leftover in root.iterdir():
        owner = leftover.name.partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(leftover, ignore_errors=True)
    return root


def _make_scratch(scratch: Path, preload: Sequence[tuple[Path, str]], uid: int | None) -> None:
    prepare_scratch(scratch, uid)
    for source, place in preload:
        if not source.is_dir():
            continue
        shutil.copytree(source, scratch / place, symlinks=True, dirs_exist_ok=True)
        if uid is not None:
            for path in [scratch / place, *(scratch / place).rglob("*")]:
                os.chown(path, uid, uid, follow_symlinks=False)
