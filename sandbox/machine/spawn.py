"""The supervisor's end of the zygote: start it, fork workers from it, end it and them."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from sandbox.cleanup import on_failure
from sandbox.errors import SandboxFault
from sandbox.machine import cores, processes
from sandbox.machine.channel import Channel, ChannelClosed, ChannelProtocol, ChannelTimeout
from sandbox.machine.cores import LaunchingCore
from sandbox.machine.gpu_state import GpuWatch
from sandbox.machine.handle import START_TIMEOUT_S, Worker, furnish
from sandbox.machine.logs import Log
from sandbox.machine.pages import MAPPED_BYTES
from sandbox.machine.quiet import Quiet
from sandbox.machine.scratch import clear_scratch, scratch_name, scratch_root
from sandbox.machine.slots import Slot
from sandbox.walls.devices import gpu_devices, own_devices
from sandbox.walls.folders import prepare_scratch, scratch_environment

logger = logging.getLogger(__name__)


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
        self.gpu, self.devices = ("", ()) if device == "cpu" else own_gpu(device_index)
        """Its name, and what workers may open: of a host's GPUs only theirs."""
        self.launching_core: LaunchingCore | None = None
        """Where timed workers launch from; None on the CPU."""
        core = cores.launching_core(visible_device(device_index)) if device == "cuda" else None
        if core is not None:
            self.launching_core = LaunchingCore(core)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._over = False
        self.root = scratch_root()
        clear_scratch(self.root)

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
        readable: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
        quiet: Quiet | None = None,
    ) -> Worker:
        """Fork a worker with walls up; raises SandboxFault when that fails.

        `preload` are folders to copy into its scratch folder, each with its place there;
        `readable` are folders it may read where they are; `environment` is set in it. `quiet`:
        where others may be timed meanwhile; raising the walls takes 0.05 s here and 0.4 s on a
        GPU's host.
        """
        with nullcontext() if quiet is None else quiet.noise():
            worker = self._fork(
                role, memory_limit_bytes, log_limit_bytes, preload, readable, environment or {}
            )
        with nullcontext() if quiet is None else quiet.beside(worker, on_host=True):
            worker.greet()
        return worker

    def _fork(
        self,
        role: str,
        memory_limit_bytes: int,
        log_limit_bytes: int,
        preload: Sequence[tuple[Path, str]],
        readable: Sequence[Path],
        environment: Mapping[str, str],
    ) -> Worker:
        """A worker that raises its walls and will say so."""
        with self._lock:
            control = self._ensure()
            slot = Slot() if os.geteuid() == 0 else None
            uid = None if slot is None else slot.uid
            scratch = self.root / scratch_name(self.root)
            with on_failure(lambda: _undo(scratch, slot)):
                prepare_scratch(scratch, uid)
                furnish(scratch, preload, uid)
                ours, theirs = socket.socketpair()
                nonce = secrets.token_hex(16)
                out, err = Log(log_limit_bytes), Log(log_limit_bytes)
                request = {
                    "op": "spawn",
                    "role": role,
                    "nonce": nonce,
                    "scratch": str(scratch),
                    "uid": uid,
                    "devices": [] if role == "build" else list(map(str, self.devices)),
                    "readable": [*readable_folders(), *map(str, readable)],
                    "environment": {**scratch_environment(scratch), **environment},
                    "limits": {"cpu_seconds": 3600, "file_bytes": 2 << 30, "processes": 512},
                }
                try:
                    control.send(request, [theirs.fileno(), out.write_fd, err.write_fd])
                    pid = control.receive(START_TIMEOUT_S)["pid"]
                except (ChannelClosed, ChannelTimeout, ChannelProtocol) as error:
                    self._end()
                    ours.close()
                    raise SandboxFault(f"the zygote did not fork a worker: {error}") from error
                finally:
                    theirs.close()
                    out.started()
                    err.started()
        worker = Worker(self, pid, Channel(ours, nonce), scratch, slot, (out, err))
        worker.memory_limit_bytes = memory_limit_bytes
        worker.trusted = role == "reference"
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
        """End the zygote for good; its workers die with it."""
        with self._lock:
            self._over = True
            self._end()

    def _ensure(self) -> Channel:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._end()
        if self._over:
            raise SandboxFault("the zygote was ended; open another evaluator")
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sandbox.machine.zygote", str(theirs.fileno()), *self._imports],
            pass_fds=[theirs.fileno()],
            env=zygote_environment(self.gpu, self.threads) | self._environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._control = Channel(ours, "zygote")
        try:
            self._control.receive(START_TIMEOUT_S)
            if self.device == "cuda" and self.devices != gpu_devices():
                self._control.send({"op": "probe", "devices": list(map(str, self.devices))})
                if not self._control.receive(START_TIMEOUT_S)["works"]:
                    logger.warning("workers can open every GPU: CUDA does not start with one alone")
                    self.devices = gpu_devices()
        except (ChannelClosed, ChannelTimeout, ChannelProtocol) as error:
            self._end()
            raise SandboxFault("the zygote process did not start; see its output above") from error
        if self.launching_core is not None:  # workers inherit it
            processes.confine(self._process.pid, cores.common_cores())
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


def _undo(scratch: Path, slot: Slot | None) -> None:
    """What was made for a worker that never was."""
    shutil.rmtree(scratch, ignore_errors=True)
    if slot is not None:
        slot.close()


def zygote_environment(gpu: str, threads: int) -> dict[str, str]:
    """A scrubbed environment: no secret of the caller's reaches a worker. `gpu`: the one it is for,
    as CUDA_VISIBLE_DEVICES names it; empty on the CPU.
    """
    keep = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "LANG", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    environment |= {
        "PATH": _tool_path(),
        "PYTHONPATH": os.pathsep.join(_source_folders()),
        "CUDA_VISIBLE_DEVICES": gpu,
        # As we number them ourselves: else unlike GPUs of one host would be taken for each other.
        "CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
        # Queues for copies to and from the host, of which CUDA makes eight: contexts, of which a
        # host makes a few a second for all its GPUs, take 0.46 s instead of 0.62 (two H100s). How
        # many there are for kernels, sandbox/machine/queues.py says.
        "CUDA_DEVICE_MAX_COPY_CONNECTIONS": "1",
        "OMP_NUM_THREADS": str(threads),
        # Idle OpenMP threads spin for about 150 us, not libgomp's 5 ms and more: one side's would
        # otherwise run on into the other side's turn on the same cores.
        "GOMP_SPINCOUNT": "10000",
        # Freed memory stays with the process, on both sides: glibc would return a batch's outputs
        # to the system and fault every page in again, at moments of its own choosing. Not above the
        # most that it ever keeps: a large workspace that a small block settles in grows the heap
        # with every call.
        "MALLOC_MMAP_THRESHOLD_": str(MAPPED_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MAX_JOBS": str(max(threads, 2)),
        # torch puts ccache or sccache before compilers where they are installed: they would find an
        # empty folder, and the latter's server no network.
        "TORCH_NO_COMPILER_WRAPPER": "1",
        # Else Inductor may start a pool of processes, and threads for it, when it is imported.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "USER": "worker",
        # Asking for a device through NVML leaves later forks able to use it.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "LOGNAME": "worker",
        # cupy fixes its cache folder when the zygote imports it: sandbox/worker/nvrtc.py has ours.
        "CUPY_CACHE_IN_MEMORY": "1",
    }
    return environment


def own_gpu(index: int) -> tuple[str, tuple[Path, ...]]:
    """For a process that runs on one of the devices that this one sees: its name, as
    CUDA_VISIBLE_DEVICES takes it, and the device files that are needed.
    """
    watch, every = GpuWatch(index), gpu_devices()
    if not watch.uuid:  # NVML does not tell, as under MIG.
        return visible_device(index), every
    # CUDA numbers only what it can open: another index than 0 would name nothing there.
    return watch.uuid, own_devices(every, watch.minor)


def visible_device(index: int) -> str:
    """One of the devices that this process sees, as CUDA_VISIBLE_DEVICES names it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[index] if visible else str(index)


def readable_folders() -> list[str]:
    """What a worker may read beside the system folders: the interpreter's and our own packages."""
    paths = {sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), *_source_folders()}
    paths |= {p for p in sys.path if "site-packages" in p or "dist-packages" in p}
    if os.environ.get("CUDA_HOME"):
        paths.add(os.environ["CUDA_HOME"])
    return sorted(p for p in paths if p and Path(p).is_dir())


def _source_folders() -> list[str]:
    folders = [str(Path(__file__).resolve().parents[2])]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return folders + [str(Path(p).resolve()) for p in inherited if p]


def _tool_path() -> str:
    folders = [str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(f for f in folders if f))
