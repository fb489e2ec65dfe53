"""Runs generated CUDA on the CPU: one fiber per thread, switched at every barrier and shuffle.

A double of `cupy.RawModule` for tests without a GPU. It checks what kernels compute and that every
address lies in a tensor's memory as far as the allocator notices; it says nothing of speed, memory
ordering or divergence.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import types
from pathlib import Path
from typing import Any

import numpy
import torch

SHIM = r"""
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <type_traits>
#include <vector>
#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(n)
#undef INFINITY
#define INFINITY __builtin_inff()
#undef NAN
#define NAN __builtin_nanf("")
struct Dim { unsigned x = 0, y = 0, z = 0; };
static Dim threadIdx, blockIdx, blockDim, gridDim;
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> void __stcs(T* p, T x) { *p = x; }
static float __int_as_float(int x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
static float __uint_as_float(unsigned x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
static unsigned atomicAdd(unsigned* p, unsigned x) { unsigned old = *p; *p += x; return old; }
static void __threadfence() {}
static float __fsub_rn(float x, float y) { return x - y; }
#define __expf expf
#define __logf logf

static std::vector<ucontext_t> fibers;
static std::vector<bool> finished;
static std::vector<uint64_t> exchange;
static ucontext_t scheduler;
static unsigned current;
static void enter(unsigned i) {
  current = i;
  threadIdx.x = i % blockDim.x;
  threadIdx.y = i / blockDim.x;
}
static void yield() { unsigned me = current; swapcontext(&fibers[me], &scheduler); }
static void __syncthreads() { yield(); }
template <class T> T __shfl_xor_sync(unsigned, T x, int o) {
  const unsigned me = threadIdx.y * blockDim.x + threadIdx.x;
  const unsigned other = (me & ~31u) | ((me ^ o) & 31u);
  __builtin_memcpy(&exchange[me], &x, sizeof(T));
  yield();
  T y;
  __builtin_memcpy(&y, &exchange[other], sizeof(T));
  yield();
  return y;
}
template <class T> T __shfl_up_sync(unsigned, T x, int o) {
  const unsigned me = threadIdx.y * blockDim.x + threadIdx.x;
  __builtin_memcpy(&exchange[me], &x, sizeof(T));
  yield();
  T y;
  __builtin_memcpy(&y, &exchange[(me & 31u) >= (unsigned)o ? me - o : me], sizeof(T));
  yield();
  return y;
}
static void (*body)();
static void fiber_main() {
  body();
  finished[current] = true;
  swapcontext(&fibers[current], &scheduler);
}
static void run_block(unsigned threads) {
  static std::vector<std::vector<char>> stacks;
  if (stacks.size() < threads) stacks.resize(threads);
  fibers.assign(threads, ucontext_t());
  finished.assign(threads, false);
  exchange.assign(threads, 0);
  for (unsigned i = 0; i < threads; ++i) {
    stacks[i].resize(1 << 16);
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = stacks[i].data();
    fibers[i].uc_stack.ss_size = stacks[i].size();
    makecontext(&fibers[i], fiber_main, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (unsigned i = 0; i < threads; ++i)
      if (!finished[i]) { enter(i); swapcontext(&scheduler, &fibers[i]); left = true; }
  }
}
static void** arguments;
"""
LAUNCH = """
extern "C" void launch_{name}(const unsigned* shape, void** given) {{
  gridDim = {{shape[0], shape[1], 1}};
  blockDim = {{shape[2], shape[3], 1}};
  arguments = given;
  body = [] {{ {name}({unpacked}); }};
  for (unsigned y = 0; y < shape[1]; ++y)
    for (unsigned x = 0; x < shape[0]; ++x) {{
      blockIdx = {{x, y, 0}};
      run_block(shape[2] * shape[3]);
    }}
}}
"""
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\)\s*)?(\w+)\(([^)]*)\)')
CONVERSIONS = {
    'asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));': (
        "_Float16 h; __builtin_memcpy(&h, &x, 2); y = (float)h;"
    ),
    'asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));': (
        "_Float16 h; __builtin_memcpy(&h, &x, 2); y = (float)h;"
    ),
    'asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));': "y = x;",
    'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));': (
        "uint32_t b; __builtin_memcpy(&b, &x, 4); y.bits = (b + 0x7fffu + ((b >> 16) & 1)) >> 16;"
    ),
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));': (
        "const _Float16 h = (_Float16)x; __builtin_memcpy(&y, &h, 2);"
    ),
}


class Kernel:
    """A `__global__` function; like cupy's, int means 64 bits and numpy scalars keep their size."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.function = getattr(library, f"launch_{name}")

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        stream: Any = None,
    ) -> None:
        assert 1 <= grid[0] < 1 << 31
        assert all(1 <= g <= 65535 for g in grid[1:])
        shape = (ctypes.c_uint * 4)(*(*grid, 1)[:2], *(*block, 1)[:2])
        assert shape[2] * shape[3] <= 1024
        boxes = [numpy.array(a, dtype=numpy.int64 if isinstance(a, int) else a.dtype) for a in args]
        pointers = (ctypes.c_void_p * len(boxes))(*(b.ctypes.data for b in boxes))
        self.function(shape, pointers)


def plain(code: str) -> str:
    """With conversions that g++ knows."""
    for ptx, known in CONVERSIONS.items():
        code = code.replace(ptx, known)
    return code


def launchers(code: str) -> tuple[list[str], str]:
    """Names of the kernels, and host functions that run each."""
    found, text = KERNEL.findall(code), ""
    for name, signature in found:
        kinds = [re.sub(r"\s*\w+$", "", p.strip()) for p in signature.split(",")]
        unpacked = ", ".join(
            f"*(std::decay_t<{k.replace('__restrict__', '')}>*)arguments[{i}]"
            for i, k in enumerate(kinds)
        )
        text += LAUNCH.format(name=name, unpacked=unpacked)
    return [name for name, _ in found], text


class RawModule:
    """Compiles with g++ where cupy would call NVRTC, each source once in a folder."""

    def __init__(self, *, code: str, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        code = plain(code)
        source = SHIM + code + launchers(code)[1]
        stem = Path(self.folder) / hashlib.sha256(source.encode()).hexdigest()[:16]
        library = stem.with_suffix(".so")
        if not library.exists():
            own = stem.with_suffix(f".{os.getpid()}")  # another process may compile the same
            command = ["g++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-fno-strict-aliasing"]
            files = ["-x", "c++", "-", "-o", str(own)]
            done = subprocess.run(
                [*command, *files], input=source, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[:3000]
            own.replace(library)
        self.library = ctypes.CDLL(str(library))

    folder = "/tmp"

    def get_function(self, name: str) -> Kernel:
        return Kernel(self.library, name)


def load(source: str, folder: Path) -> dict[str, Any]:
    """The candidate's module, its CUDA emulated."""
    module = type("RawModule", (RawModule,), {"folder": str(folder)})
    cuda = types.SimpleNamespace(ExternalStream=lambda pointer: None)
    names: dict[str, Any] = {
        "__name__": "candidate",
        "cupy": types.SimpleNamespace(RawModule=module, cuda=cuda),
        "raw_stream": lambda device: 0,
    }
    lines = [
        s
        for s in source.splitlines()
        if "_cuda_getCurrentRawStream" not in s and s != "import cupy"
    ]
    exec(compile("\n".join(lines), "candidate.py", "exec"), names)
    assert names["torch"] is torch
    return names
