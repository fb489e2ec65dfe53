"""What this machine has for Warpsmith, what is missing, and the command that mends it.

It looks and reports; it installs nothing, and it does not prove that a compiler works.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from sandbox.building.toolchain import nvcc
from sandbox.cache import cache_root
from sandbox.errors import ConfigError, DeviceError, SandboxFault, install
from sandbox.machine.device import cpu_name
from sandbox.machine.probe import probe
from sandbox.walls.enclose import Grade
from sandbox.words import number_of

CUDA13_DRIVER = 580
"""The first driver series that runs CUDA 13 (CUDA 13.0 release notes, table 2)."""
DISK_WANTED_BYTES = 5 << 30
"""Room for build caches and journals of a few long campaigns."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    """A command, or what to do; empty where nothing is wrong."""
    needed: bool = True
    """False where only some languages or devices want it."""


def examine(runs: Path) -> list[Finding]:
    """Everything that `warpsmith doctor` prints; `runs` is where journals will lie."""
    return [
        _torch(),
        _gpu(),
        _tool("g++", "-dumpfullversion", "builds C++/OpenMP kernels", "apt-get install g++", True),
        _tool("ninja", "--version", "builds load_inline kernels", "pip install ninja", True),
        _tool(
            "nvcc",
            "--version",
            "only for language cuda_inline",
            "install the CUDA toolkit and put its bin folder on PATH, or its own into CUDA_HOME",
            False,
            nvcc(),
        ),
        _package("cupy", install(_cuda_extra()), "language cuda on a GPU"),
        _package("triton", "pip install triton", "language triton on a GPU"),
        _package("trl", install("train"), "`train`, and models of your own"),
        _package("plotly", install("report"), "`report` as a page"),
        _walls(),
        _disk("runs", runs),
        _disk("cache", cache_root()),
    ]


def gpu_count() -> int:
    """GPUs that torch can use, without creating a context."""
    return int(torch.cuda.device_count())


def resolve_device(device: str) -> Literal["cpu", "cuda"]:
    """`auto` is `cuda` where there is a GPU; raises DeviceError for a GPU that is not there."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is {device!r}; expected cpu, cuda or auto")
    if device == "auto":
        return "cuda" if gpu_count() else "cpu"
    if device == "cuda" and not gpu_count():
        raise DeviceError(
            "no usable NVIDIA GPU: check nvidia-smi and that torch has CUDA support, "
            "or use --device cpu; `warpsmith doctor` shows more"
        )
    return "cuda" if device == "cuda" else "cpu"


def describe(device: str) -> dict[str, str]:
    """The machine in a few words, for a model's prompt; creates no CUDA context."""
    if device == "cuda":
        fields = {"GPU": "name", "GPU memory": "memory.total", "compute capability": "compute_cap"}
        found = {title: _query(field) for title, field in fields.items()}
        return {title: value for title, value in found.items() if value is not None}
    return {
        "CPU": cpu_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "compiler": _tool("g++", "-dumpfullversion", "", "", True).detail,
    }


def _torch() -> Finding:
    cuda = "no CUDA" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
    threads = number_of(torch.get_num_threads(), "thread")
    return Finding("torch", True, f"{torch.__version__}, {cuda}, {threads}")


def _gpu() -> Finding:
    count = gpu_count()
    driver = _query("driver_version")
    if count:
        names = {torch.cuda.get_device_name(i) for i in range(count)}
        return Finding("GPU", True, f"{count} x {', '.join(sorted(names))}, driver {driver}")
    if driver is not None:
        remedy = "install a torch wheel with CUDA: https://pytorch.org/get-started/locally"
        return Finding("GPU", False, f"driver {driver}, but torch sees no GPU", remedy, False)
    return Finding("GPU", False, "none; C++ kernels on the CPU work", "", False)


def _query(field: str) -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, f"--query-gpu={field}", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    return lines[0].strip() if lines else None


def _cuda_extra() -> str:
    series = (_query("driver_version") or "").partition(".")[0]
    return "cuda13" if series.isdigit() and int(series) >= CUDA13_DRIVER else "cuda12"


def _tool(
    name: str, flag: str, use: str, remedy: str, needed: bool, place: str | None = None
) -> Finding:
    """`place`: where it has to be, whatever is on PATH."""
    path = shutil.which(place or name)
    if path is None:
        return Finding(name, False, f"not found; {use}", remedy, needed)
    out = subprocess.run([path, flag], capture_output=True, text=True, check=False).stdout
    release = re.search(r"\brelease (\d[\d.]*)", out)  # nvcc's; its last line names a build
    version = release[1] if release else (out.strip().splitlines() or ["?"])[-1]
    return Finding(name, True, f"{version} ({path})")


def _package(name: str, remedy: str, use: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, False, f"not installed; only for {use}", remedy, needed=False)
    distributions = metadata.packages_distributions().get(name, [name])
    return Finding(name, True, metadata.version(distributions[0]))


def _walls() -> Finding:
    try:
        walls = probe()
    except SandboxFault as error:
        return Finding("walls", False, str(error), "run on Linux 5.13 or newer")
    detail = f"{walls.grade.value}: {', '.join(walls.layers) or 'none'}"
    if walls.missing:
        detail += f"; missing: {', '.join(walls.missing)}"
    remedy = "" if walls.grade is Grade.FULL else "run as root (in a container) for grade full"
    return Finding("walls", walls.grade is not Grade.WEAK, detail, remedy)


def _disk(name: str, path: Path) -> Finding:
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / 2**30:.0f} GiB free at {existing}"
    if not os.access(existing, os.W_OK):
        return Finding(f"disk ({name})", False, f"{existing} is not writable", "choose another")
    remedy = "" if free >= DISK_WANTED_BYTES else f"free some space at {existing}"
    return Finding(f"disk ({name})", free >= DISK_WANTED_BYTES, detail, remedy)
