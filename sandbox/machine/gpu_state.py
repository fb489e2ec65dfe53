"""Whether somebody or something disturbed the GPU while a pair was timed: read from NVML.

Foreign compute processes at work, hardware or thermal throttling, uncorrectable memory errors. A
software power cap is no disturbance: a dense matmul meets it, on both sides alike. Not seen:
processes of other containers (the driver hides them), graphics clients, and anything where NVML is
missing, as under MIG: `GpuWatch.sees` says what can be told. The driver's own library through
ctypes, because torch asks for processes and throttling only through a package that is not always
there (NVML API reference, NVIDIA).
"""

from __future__ import annotations

import ctypes
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from sandbox.errors import SandboxFault

logger = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
MAX_PROCESSES = 256
THROTTLING = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons that say more than load or a set clock."""
THERMAL_POLICY = 1
"""NVML_PERF_POLICY_THERMAL, whose counter runs while heat holds the clocks down."""
THERMAL_SHARE = 0.02
"""Of the time between two looks: a shorter dip is below what the rounds' spread shows anyway."""
UNCORRECTED, VOLATILE = 1, 0


@dataclass(frozen=True)
class GpuState:
    """One look at the GPU. None where the driver does not tell."""

    taken_s: float
    """Unix time."""
    foreign: frozenset[int] | None
    """Compute processes that are neither this process nor its descendants."""
    at_work: frozenset[int] | None
    """Those of them that used the multiprocessors since an earlier look."""
    throttling: int | None
    """Bit mask of the driver's reasons."""
    thermal_ns: int | None
    """Nanoseconds that heat has held the clocks down since the driver was loaded."""
    memory_errors: int | None
    """Uncorrectable ECC errors since the driver was loaded."""


def disturbance(before: GpuState, after: GpuState) -> str:
    """What happened to the GPU between two looks, in words; empty where nothing did."""
    foreign = (before.foreign or frozenset()) | (after.foreign or frozenset())
    # Without figures of use, a process that only holds a context cannot be told from a busy one.
    working = foreign if after.at_work is None else after.at_work
    if working:
        listed = ", ".join(map(str, sorted(working)[:5]))
        return f"another process uses the GPU (pid {listed})"
    reasons = (before.throttling or 0) | (after.throttling or 0)
    named = [name for bit, name in THROTTLING.items() if reasons & bit]
    if named:
        return f"the GPU is throttled: {', '.join(named)}"
    if before.thermal_ns is not None and after.thermal_ns is not None:
        held_s = (after.thermal_ns - before.thermal_ns) / 1e9
        if held_s > THERMAL_SHARE * (after.taken_s - before.taken_s):
            return f"heat held the GPU's clocks down for {held_s * 1e3:.0f} ms"
    if before.memory_errors is not None and after.memory_errors is not None:
        new = after.memory_errors - before.memory_errors
        if new > 0:
            return f"{new} uncorrectable memory errors on the GPU"
    return ""


class GpuWatch:
    """Looks at one GPU; where NVML cannot be used every look tells nothing."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.uuid = ""
        """As CUDA_VISIBLE_DEVICES takes it; empty where NVML knows no such device."""
        self._nvml: _Nvml | None = None
        try:
            # Unlike an index, the UUID means one device whatever CUDA_VISIBLE_DEVICES says.
            uuid = str(torch.cuda.get_device_properties(index).uuid)
            uuid = f"GPU-{uuid.removeprefix('GPU-')}"
            self._nvml = _Nvml(uuid)
            self.uuid = uuid
        except (OSError, AttributeError, _NvmlError) as error:
            logger.warning("the GPU is not watched for disturbances: %s", error)

    @cached_property
    def sees(self) -> str:
        """For the record: what this watch can tell here, such as `processes throttling ecc`."""
        state = self.look(self.look())
        told = {
            "processes": state.foreign,
            "use": state.at_work,
            "throttling": state.throttling,
            "heat": state.thermal_ns,
            "ecc": state.memory_errors,
        }
        return " ".join(name for name, value in told.items() if value is not None) or "nothing"

    def look(self, since: GpuState | None = None) -> GpuState:
        """The state now; who used the GPU is told from the look `since` on."""
        now = time.time()
        if self._nvml is None:
            return GpuState(now, None, None, None, None, None)
        told = self._nvml.compute_processes()
        pids = None if told is None else set(told)
        # Our own context must be listed, or the numbers belong to another namespace than ours.
        foreign = None
        if pids is not None and os.getpid() in pids:
            foreign = frozenset(pid for pid in pids if _is_foreign(pid))
        at_work = None
        if since is not None and foreign is not None:
            used = self._nvml.processes_at_work(int(since.taken_s * 1e6))
            known = foreign | (since.foreign or frozenset())  # one of them may have ended
            at_work = None if used is None else known & used
        return GpuState(
            taken_s=now,
            foreign=foreign,
            at_work=at_work,
            throttling=self._nvml.throttle_reasons(),
            thermal_ns=self._nvml.thermal_violation_ns(),
            memory_errors=self._nvml.uncorrected_errors(),
        )

    @property
    def minor(self) -> int | None:
        """The number in the name of its device file; None where NVML does not tell."""
        return None if self._nvml is None else self._nvml.minor()

    def held_bytes(self, pid: int) -> int | None:
        """Memory of the GPU that a process holds, its context included; None where NVML does not
        tell.
        """
        told = None if self._nvml is None else self._nvml.compute_processes()
        return None if told is None else told.get(pid)


@contextmanager
def undisturbed(watch: GpuWatch | None, looking: Future[GpuState] | None = None) -> Iterator[None]:
    """Raise SandboxFault where the GPU was disturbed while the block ran; without a GPU, nothing.

    A block that raises is left alone: what it says comes first. `looking`: the first look, begun
    before, in a thread that waits for the driver meanwhile.
    """
    if watch is None:
        yield
        return
    before = watch.look() if looking is None else looking.result()
    yield
    found = disturbance(before, watch.look(before))
    if found:
        raise SandboxFault(f"{found}: what was timed does not count")


def _is_foreign(pid: int) -> bool:
    """Alive, and neither this process nor a descendant of it."""
    ours = os.getpid()
    first = True
    while pid > 1:
        if pid == ours:
            return False
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return not first  # ended: the driver lists a worker a little longer than it lives
        state, parent = stat.rpartition(")")[2].split()[:2]
        if first and state in "ZX":
            return False
        pid, first = int(parent), False
    return True


class _NvmlError(Exception):
    """NVML refused a call that everything else needs."""


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _UtilizationSample(ctypes.Structure):
    """nvmlProcessUtilizationSample_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time_us", ctypes.c_ulonglong),
        ("sm_percent", ctypes.c_uint),
        ("memory_percent", ctypes.c_uint),
        ("encoder_percent", ctypes.c_uint),
        ("decoder_percent", ctypes.c_uint),
    )


class _ViolationTime(ctypes.Structure):
    """nvmlViolationTime_t."""

    _fields_ = (("reference_us", ctypes.c_ulonglong), ("violation_ns", ctypes.c_ulonglong))


SUCCESS, NOT_FOUND = 0, 6
NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE, as an unsigned number."""


class _Nvml:
    """The questions asked of the driver's library; None for one that it does not answer."""

    def __init__(self, uuid: str) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._device = ctypes.c_void_p()
        self._demand(self._library.nvmlInit_v2())
        handle = self._library.nvmlDeviceGetHandleByUUID
        self._demand(handle(uuid.encode(), ctypes.byref(self._device)))

    def compute_processes(self) -> dict[int, int | None] | None:
        """Memory in bytes by pid; None for a process of which it is not told."""
        count = ctypes.c_uint(MAX_PROCESSES)
        found = (_ProcessInfo * MAX_PROCESSES)()
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        if self._ask(name, ctypes.byref(count), found) != SUCCESS:
            return None
        listed = [(found[i].pid, found[i].used_bytes) for i in range(count.value)]
        return {pid: None if used == NOT_AVAILABLE else used for pid, used in listed}

    def processes_at_work(self, since_us: int) -> set[int] | None:
        """Those with a sample of multiprocessor use above zero after `since_us` (Unix time)."""
        count = ctypes.c_uint(MAX_PROCESSES)
        found = (_UtilizationSample * MAX_PROCESSES)()
        since = ctypes.c_ulonglong(since_us)
        code = self._ask("nvmlDeviceGetProcessUtilization", found, ctypes.byref(count), since)
        if code == NOT_FOUND:
            return set()
        if code != SUCCESS:
            return None
        return {found[i].pid for i in range(count.value) if found[i].sm_percent > 0}

    def throttle_reasons(self) -> int | None:
        value = ctypes.c_ulonglong()
        code = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.byref(value))
        return value.value if code == SUCCESS else None

    def thermal_violation_ns(self) -> int | None:
        value = _ViolationTime()
        code = self._ask("nvmlDeviceGetViolationStatus", THERMAL_POLICY, ctypes.byref(value))
        return int(value.violation_ns) if code == SUCCESS else None

    def uncorrected_errors(self) -> int | None:
        value = ctypes.c_ulonglong()
        name = "nvmlDeviceGetTotalEccErrors"
        code = self._ask(name, UNCORRECTED, VOLATILE, ctypes.byref(value))
        return value.value if code == SUCCESS else None

    def minor(self) -> int | None:
        value = ctypes.c_uint()
        code = self._ask("nvmlDeviceGetMinorNumber", ctypes.byref(value))
        return value.value if code == SUCCESS else None

    def _ask(self, name: str, *arguments: object) -> int | None:
        """The call's code; None where this driver has no such call."""
        call = getattr(self._library, name, None)
        return None if call is None else int(call(self._device, *arguments))

    def _demand(self, code: int) -> None:
        if code != SUCCESS:
            raise _NvmlError(f"{LIBRARY} answers with code {code}")
