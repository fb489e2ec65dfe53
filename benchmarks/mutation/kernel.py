"""One correct kernel, written once, rendered as a candidate for the CPU and for the GPU.

The body is the C that both compilers take. It runs once for each item `i`: an iteration of an
OpenMP loop, or a CUDA thread. A `team` body runs once for each thread `t` of a block `i` and exists
on the GPU only, where shared memory and barriers give mutants their own ways to be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from textwrap import dedent, indent

from kernelbench.suite import load_tasks
from sandbox.types import Candidate, Language, Shape, Task

TEAM = 128
"""Threads of a block."""


@dataclass(frozen=True)
class Rewrite:
    """A mutant that no general operator makes: `old` becomes `new` once, in body or forward."""

    operator: str
    old: str
    new: str


@dataclass(frozen=True)
class Kernel:
    name: str
    task: str
    """Name of a built-in problem, or the source of one."""
    takes: str
    """C parameters, such as `const float* x, float* out, i64 cols`."""
    body: str
    forward: str
    """Python: methods of ModelNew, which call `launch(items, *arguments)`."""
    shapes: tuple[Shape, ...] = ()
    """Of an own problem."""
    team: bool = False
    square: bool = False
    """Its matrices have axes of one size, so that these can be taken for each other."""
    rewrites: tuple[Rewrite, ...] = ()
    skip: Mapping[str, str] = field(default_factory=dict)
    """Mutants that are none, by name such as `tail 1` or by operator, on one device where
    that comes first (`cpu race 1`), each with the reason.
    """

    def devices(self) -> tuple[str, ...]:
        return ("cuda",) if self.team else ("cpu", "cuda")

    def reference(self, device: str) -> Task:
        """The same small sizes and float32 on both devices."""
        if "class Model" in self.task:
            return Task(f"mutation/{self.name}", dedent(self.task), device, shapes=self.shapes)
        task = load_tasks(self.task, "cpu", "float32")[0]
        return replace(task, device=device)

    def candidate(self, device: str) -> Candidate:
        render = _cuda if device == "cuda" else _cpp
        language = Language.CUDA if device == "cuda" else Language.CPP
        return Candidate(self.reference(device).id, language, render(self))


ROUNDING = """
DEVICE float rounded(float v, unsigned drop) {
  union { float f; unsigned u; } bits;
  bits.f = v;
  bits.u = (bits.u + (1u << (drop - 1))) & ~((1u << drop) - 1);
  return bits.f;
}
DEVICE float bf16(float v) { return rounded(v, 16); }
DEVICE float ten_bits(float v) { return rounded(v, 13); }
"""
"""What mutants call: to bfloat16's seven bits of mantissa, and to the ten of float16 and TF32."""

CPP = '''
import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <cmath>
#include <cstdint>
#define DEVICE static inline
#define LOWEST -3.4e38f
typedef int64_t i64;
DEVICE void atomic_add(i64& a, i64 b) {{
  #pragma omp atomic
  a += b;
}}
DEVICE void atomic_add(float& a, float b) {{
  #pragma omp atomic
  a += b;
}}
{rounding}
DEVICE void item(i64 i, {takes}) {{
{body}
}}
extern "C" void run(i64 items, {takes}) {{
  #pragma omp parallel for schedule(static)
  for (i64 i = 0; i < items; ++i) item(i, {names});
}}
"""
LIBRARY = ctypes.CDLL(
    load_inline(
        name="mutated",
        cpp_sources=[SRC],
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O1", "-fopenmp"],
        extra_ldflags=["-fopenmp"],
    )
)
LIBRARY.run.argtypes = [ctypes.c_int64, {ctypes}]
LIBRARY.run.restype = None


def launch(items, *arguments):
    plain = [a.data_ptr() if torch.is_tensor(a) else a for a in arguments]
    LIBRARY.run(items, *plain)


class ModelNew(nn.Module):
{forward}
'''

CUDA = '''
import cupy
import torch
from torch import nn

SRC = r"""
#define DEVICE __device__ static inline
#define LOWEST -3.4e38f
typedef long long i64;
DEVICE void atomic_add(i64& a, i64 b) {{
  atomicAdd(reinterpret_cast<unsigned long long*>(&a), static_cast<unsigned long long>(b));
}}
DEVICE void atomic_add(float& a, float b) {{ atomicAdd(&a, b); }}
{rounding}
DEVICE void item(i64 i, {takes}) {{
{body}
}}
extern "C" __global__ void run(i64 items, {takes}) {{
{loop}
}}
"""
KERNEL = cupy.RawModule(code=SRC).get_function("run")


def launch(items, *arguments):
    plain = [a.data_ptr() if torch.is_tensor(a) else a for a in arguments]
    blocks = {blocks}
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        KERNEL((blocks,), ({threads},), (items, *plain))


class ModelNew(nn.Module):
{forward}
'''
PER_THREAD = """  const i64 stride = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < items; i += stride)
    item(i, {names});"""
PER_BLOCK = "  item(blockIdx.x, {names});"


def _cpp(kernel: Kernel) -> str:
    types = ["c_int64" if p.startswith("i64 ") else "c_void_p" for p in _parameters(kernel)]
    return CPP.format(**_parts(kernel), ctypes=", ".join(f"ctypes.{t}" for t in types))


def _cuda(kernel: Kernel) -> str:
    parts = _parts(kernel)
    loop = PER_BLOCK if kernel.team else PER_THREAD
    return CUDA.format(
        **parts,
        loop=loop.format(names=parts["names"]),
        threads=TEAM if kernel.team else 64,
        blocks="items" if kernel.team else "max(1, (items + 63) // 64)",
    )


def _parts(kernel: Kernel) -> dict[str, str]:
    return {
        "rounding": ROUNDING,
        "takes": kernel.takes,
        "names": ", ".join(re.split(r"[ *]+", p)[-1] for p in _parameters(kernel)),
        "body": indent(dedent(kernel.body).strip("\n"), "  "),
        "forward": indent(dedent(kernel.forward).strip("\n"), "    "),
    }


def _parameters(kernel: Kernel) -> list[str]:
    return [parameter.strip() for parameter in kernel.takes.split(",")]
