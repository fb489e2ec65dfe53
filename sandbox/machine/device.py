"""What the device can do, measured once per device and driver and cached: the roofline behind each
floor.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from sandbox.cache import keep_json, read_json
from sandbox.errors import DeviceError
from sandbox.machine import launch
from sandbox.machine.memory import device_free_bytes
from sandbox.types import SCHEMA_VERSION, digest

BUSY = 1.05
"""By so much quicker, and the device had been busy when its facts were measured."""


@dataclass(frozen=True)
class DeviceFacts:
    """Measured on this machine; a datasheet is never consulted."""

    name: str
    device: str
    environment: dict[str, str]
    copy_bytes_s: float
    """Device-to-device copy, bytes read plus written per second."""
    matmul_flops: dict[str, float]
    """FLOP/s of a square matmul per precision."""
    launch_s: float
    """Smallest cost of one more kernel launch; 0 on the CPU."""
    cache_bytes: int
    """Last-level cache (L2 on a GPU)."""
    memory_bytes: int

    @property
    def fingerprint(self) -> str:
        """Names the environment that figures belong to."""
        return digest(self.environment)

    def floor_s(self, compulsory_bytes: int) -> float:
        """Seconds that moving `compulsory_bytes` takes at measured bandwidth."""
        return compulsory_bytes / self.copy_bytes_s


def device_facts(device: str, cache: Path) -> DeviceFacts:
    """Facts of the current device, from the cache or measured now (a few seconds).

    Raises DeviceError when `cuda` is asked for and there is none.
    """
    environment = fingerprint(device)
    path = _path(environment, cache)
    known = read_json(path)
    if known is not None:
        return DeviceFacts(**known)
    facts = _measure(environment)
    keep_json(path, asdict(facts))
    return facts


def measured_again(known: DeviceFacts, cache: Path) -> DeviceFacts:
    """The facts, of each figure the better of before and now: a device that was busy reaches less
    than it can, and none reaches more. The same ones unless bytes or launches are quicker by
    BUSY.
    """
    now = _measure(known.environment)
    better = replace(
        known,
        copy_bytes_s=max(known.copy_bytes_s, now.copy_bytes_s),
        matmul_flops={
            kind: max(flops, now.matmul_flops[kind]) for kind, flops in known.matmul_flops.items()
        },
        launch_s=min(known.launch_s, now.launch_s),
    )
    quicker = max(
        better.copy_bytes_s / known.copy_bytes_s,
        known.launch_s / better.launch_s if better.launch_s else 1.0,
    )
    if quicker < BUSY:
        return known
    keep_json(_path(known.environment, cache), asdict(better))
    return better


def _path(environment: dict[str, str], cache: Path) -> Path:
    return cache / "devices" / f"{digest([environment, SCHEMA_VERSION])}.json"


def _measure(environment: dict[str, str]) -> DeviceFacts:
    cuda = environment["device"] == "cuda"
    return _measure_cuda(environment) if cuda else _measure_cpu(environment)


def fingerprint(device: str) -> dict[str, str]:
    """Everything that a figure depends on: device, driver, libraries, compilers; of a GPU's not how
    many cores are beside the one that launches its calls, nor which instructions they know.
    """
    facts = {
        "device": device,
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": f"{platform.system()} {platform.release()}",
        "compiler": _version("g++"),
    }
    if device == "cpu":
        facts["threads"] = str(len(os.sched_getaffinity(0)))
        facts["instructions"] = instructions(Path("/proc/cpuinfo").read_text())
    if device == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError(
                "no usable NVIDIA GPU: check nvidia-smi and that torch has CUDA support, "
                "or use --device cpu"
            )
        facts |= {
            "gpu": torch.cuda.get_device_name(),
            "arch": "sm_{}{}".format(*torch.cuda.get_device_capability()),
            "cuda": str(torch.version.cuda),
            "driver": _driver_version(),
        }
    return facts


def free_bytes(device: str) -> int:
    """Memory that arenas and models may still take."""
    if device == "cuda":
        return device_free_bytes()
    # A CPU lane shares the machine with compilers and the caller; a gigabyte of arenas is plenty.
    available = available_bytes(Path("/proc/meminfo").read_text())
    return int(min(available // 2, 4 << 30))


def available_bytes(meminfo: str) -> int:
    """What processes may still take, files that can be dropped from memory included (proc(5)): what
    is free without them is little on any machine that has read some files.
    """
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return 1024 * int(fields["MemAvailable"].split()[0])


def _measure_cpu(environment: dict[str, str]) -> DeviceFacts:
    size = 64 << 20
    source, target = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    left = torch.randn(1024, 1024)
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    copy_s = _best(lambda: target.copy_(source), lambda: None, 5)
    matmul_s = _best(lambda: left @ left, lambda: None, 5)
    torch.set_num_threads(before)
    return DeviceFacts(
        name=environment["cpu"],
        device="cpu",
        environment=environment,
        copy_bytes_s=2 * size / copy_s,
        matmul_flops={"float32": 2 * 1024**3 / matmul_s},
        launch_s=0.0,
        cache_bytes=_last_level_cache(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def _measure_cuda(environment: dict[str, str]) -> DeviceFacts:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    size = min(2 << 30, int(torch.cuda.mem_get_info()[0]) // 8)
    copy_s = _copy_s(size)
    flops = {}
    for name, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("float16", torch.float16, False),
        ("bfloat16", torch.bfloat16, False),
    ):
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = tf32
        flops[name] = 2 * 8192**3 / _matmul_s(8192, dtype)
        torch.backends.cuda.matmul.allow_tf32 = before
    torch.cuda.empty_cache()
    return DeviceFacts(
        name=environment["gpu"],
        device="cuda",
        environment=environment,
        copy_bytes_s=2 * size / copy_s,
        matmul_flops=flops,
        launch_s=_launch_s(),
        cache_bytes=int(properties.L2_cache_size),
        memory_bytes=int(properties.total_memory),
    )


def _copy_s(size: int) -> float:
    source = torch.ones(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return _best(lambda: target.copy_(source), torch.cuda.synchronize, 10)


def _matmul_s(size: int, dtype: torch.dtype) -> float:
    left = torch.randn(size, size, device="cuda", dtype=dtype)
    return _best(lambda: left @ left, torch.cuda.synchronize, 5)


def _launch_s() -> float:
    """Seconds per launch of an empty kernel in a CUDA graph of 1000: the least any kernel can
    cost. Raises DeviceError where cupy, which candidates launch with too, is missing.
    """
    kernel = launch.kernel('extern "C" __global__ void nothing() {}', "nothing")
    stream = launch.cupy().cuda.Stream(non_blocking=True)
    count = 1000
    with stream:
        kernel((1,), (32,), ())
        stream.begin_capture()
        for _ in range(count):
            kernel((1,), (32,), ())
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        return _best(lambda: graph.launch(stream), stream.synchronize, 10) / count


def _best(work: Callable[[], object], synchronize: Callable[[], object], repeats: int) -> float:
    """Median seconds of `work`, after two warm-up runs."""
    work()
    work()
    synchronize()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def cpu_name() -> str:
    """As the kernel has it; the architecture where it has none, as on aarch64."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


PROCESSOR = re.compile(
    r"^(?:vendor_id|cpu family|model|stepping|flags|Features|CPU \w+)\s*:.*$", re.MULTILINE
)
"""Lines of /proc/cpuinfo that tell one processor from another, on x86-64 and aarch64."""


def instructions(cpuinfo: str) -> str:
    """A digest of which processor the first one is and what it can do: virtual machines call unlike
    ones by one name, aarch64 none by any, and what is built with `-march=native` on one may be an
    illegal instruction on another that shares the cache.
    """
    return digest(PROCESSOR.findall(cpuinfo.strip().partition("\n\n")[0]))


def _last_level_cache() -> int:
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0))
    return max(sizes, default=32 << 20)


def _version(tool: str) -> str:
    if shutil.which(tool) is None:
        return "none"
    out = subprocess.run([tool, "-dumpfullversion"], capture_output=True, text=True, check=False)
    return f"{tool} {out.stdout.strip()}"


def _driver_version() -> str:
    path = Path("/proc/driver/nvidia/version")
    if path.exists():
        words = path.read_text().split()
        found = [w for w in words if w[0].isdigit() and w.count(".") >= 1]
        if found:
            return found[0]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    out = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
    return out[0] if out else "unknown"


def arch_list() -> str | None:
    """`9.0` for TORCH_CUDA_ARCH_LIST, or None without a GPU; asked without creating a context."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=compute_cap", "--format=csv,noheader"]
    out = subprocess.run(query, capture_output=True, text=True, check=False)
    found = {line.strip() for line in out.stdout.splitlines() if line.strip()[:1].isdigit()}
    return ";".join(sorted(found)) if out.returncode == 0 and found else None
