"""A double of `load_inline` for converted kernels: device code emulated on the CPU, host code real.

The binding that a converted file carries is compiled as it is, against a stand-in for CUDA's
runtime that hands launches to the emulator. It says nothing of what nvcc accepts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.agent.cuda_emulator import SHIM, launchers, plain

RUNTIME = """
#pragma once
#include <cstddef>
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
using cudaError_t = int;
using cudaStream_t = struct Stream*;
using cudaFuncAttribute = int;
constexpr cudaError_t cudaSuccess = 0;
extern "C" const char* cudaGetErrorName(cudaError_t);
extern "C" const char* cudaGetErrorString(cudaError_t);
extern "C" cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int);
extern "C" cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
"""
LAUNCH = """
#include "cuda_runtime.h"
extern "C" const char* cudaGetErrorName(cudaError_t) { return "cudaErrorInvalidValue"; }
extern "C" const char* cudaGetErrorString(cudaError_t) { return "invalid argument"; }
extern "C" cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int v) {
  return v > 232448;
}
extern "C" cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** given,
                                        size_t, cudaStream_t) {
  const unsigned shape[4] = {grid.x, grid.y, block.x, block.y};
  if (block.x * block.y * block.z > 1024) return 1;
  %s
  return 1;
}
"""
CHOICE = "if (f == reinterpret_cast<const void*>(&%s)) { launch_%s(shape, given); return 0; }"


class Emulated:
    """Stands for `torch.utils.cpp_extension.load_inline`; remembers what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.flags = folder, list[str]()

    def __call__(
        self,
        *,
        name: str,
        cpp_sources: list[str],
        cuda_sources: list[str],
        extra_cuda_cflags: list[str],
        no_implicit_headers: bool,
    ) -> ModuleType:
        assert no_implicit_headers
        self.flags = extra_cuda_cflags
        code = plain(cuda_sources[0])
        names, functions = launchers(code)
        choices = "\n  ".join(CHOICE % (n, n) for n in names)
        device = SHIM + code + functions + LAUNCH % choices
        key = hashlib.sha256((device + cpp_sources[0]).encode()).hexdigest()[:12]
        target = self.folder / key
        target.mkdir(exist_ok=True)
        (target / "cuda_runtime.h").write_text(RUNTIME)
        (target / "device.cpp").write_text(device)
        (target / "main.cpp").write_text(cpp_sources[0])
        command = ["g++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-fno-strict-aliasing"]
        command += [f"-I{target}", f"-I{sysconfig.get_path('include')}"]
        command += [f"-DTORCH_EXTENSION_NAME={name}", "device.cpp", "main.cpp", "-o", f"{name}.so"]
        done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        spec = importlib.util.spec_from_file_location(name, target / f"{name}.so")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def load(source: str, folder: Path, double: Any = None) -> dict[str, Any]:
    """A converted candidate's names, its `load_inline` emulated, or another double's work."""
    emulated = double or Emulated(folder)
    line = "from torch.utils.cpp_extension import load_inline\n"
    assert source.count(line) == 1
    lines = [
        s for s in source.replace(line, "").splitlines() if "_cuda_getCurrentRawStream" not in s
    ]
    names: dict[str, Any] = {
        "__name__": "converted",
        "load_inline": emulated,
        "raw_stream": lambda device: 0,
        "emulated": emulated,
    }
    exec(compile("\n".join(lines), "converted.py", "exec"), names)
    return names
