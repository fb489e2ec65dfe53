"""What compilers there are, and what they compile for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sandbox.building import light
from sandbox.building.light import Ways
from sandbox.errors import DeviceError
from sandbox.machine.device import fingerprint
from sandbox.types import SCHEMA_VERSION, Language
from sandbox.worker.extension_keys import SCHEME

CXX = "c++"
"""What torch compiles host sources with: no CXX reaches a build."""


def nvcc() -> str:
    """The one that torch takes (its `_find_cuda_home`): of the toolkit that the environment names,
    whatever is on PATH.
    """
    named, found = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"), shutil.which("nvcc")
    home = Path(named) if named else Path(found).parents[1] if found else Path("/usr/local/cuda")
    return str(home / "bin" / "nvcc")


def require_compilers(language: Language) -> None:
    """Raise DeviceError, with the remedy, unless this language can be compiled here."""
    if language is Language.TRITON:
        return  # it says itself what it misses
    if shutil.which(CXX) is None:
        raise DeviceError(f"{CXX} not found: install a C++ compiler (Debian: apt-get install g++)")
    if language is Language.CUDA_INLINE and shutil.which(nvcc()) is None:
        raise DeviceError(
            f"{nvcc()} not found: install the CUDA toolkit (CUDA_HOME, where it is set, names its "
            "folder), or use language cuda (NVRTC)"
        )


def toolchain(arch: str | None, ways: Ways) -> dict[str, Any]:
    """Everything a library depends on beside its source: compilers, headers, flags, machine."""
    machine = fingerprint("cpu")
    return {
        # -march=native; Python's and torch's versions. Not how many cores it may use, nor a kernel.
        "machine": {key: machine[key] for key in ("cpu", "instructions", "python", "torch")},
        "cxx": [version_line(CXX), version_line("g++")],  # nvcc's is the latter
        "nvcc": [nvcc(), version_line(nvcc())],
        "torch": [torch.__file__, str(torch.version.git_version), str(torch.version.cuda)],
        "arch": arch,
        "triton": version_of("triton"),
        "ways": asdict(ways),
        "headers": light.shadow_tree(),
        "schema": SCHEMA_VERSION,
        "keys": SCHEME,
    }


def version_line(compiler: str) -> str:
    """What a compiler says it is; "" where there is none."""
    if shutil.which(compiler) is None:
        return ""
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.strip()


def version_of(package: str) -> str:
    """Of an installed package; "" where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def capability(arch: str | None) -> int | None:
    """90 for `9.0`: what Triton compiles for ahead; None where it is not there, or GPUs differ."""
    known = re.fullmatch(r"(\d+)\.(\d)[a-z]?", arch or "")
    there = importlib.util.find_spec("triton") is not None
    return 10 * int(known[1]) + int(known[2]) if known and there else None
