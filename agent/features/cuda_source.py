"""Fragments of CUDA C++ that both forms share: device functions, loads, stores, reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.features.emit import (
    C_TYPES,
    COMBINE,
    IDENTITY,
    TURNED,
    Sweep,
    declare,
    operand_of,
    parameters,
    pick,
    row_offset,
    row_values,
    written,
)
from agent.features.expr import TYPES, expression
from agent.features.program import Operand, Program, Value
from agent.features.search import Features

PRELUDE = r"""
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
__device__ __forceinline__ float value_of(float x) { return x; }
__device__ __forceinline__ float value_of(bf16 x) { return __int_as_float((int)x.bits << 16); }
__device__ __forceinline__ float value_of(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
template <class X> __device__ __forceinline__ long long value_of(X x) { return x; }
__device__ __forceinline__ bool value_of(bool x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return value_of(x); }
__device__ __forceinline__ float to_float(f16 x) { return value_of(x); }
__device__ __forceinline__ bf16 bf16_of(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
__device__ __forceinline__ f16 f16_of(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
// NaN wins, as in torch.
template <class A, class B>
__device__ __forceinline__ auto larger(A a, B b) -> decltype(a + b) {
  return (a > b) | (a != a) ? a : b;
}
template <class A, class B>
__device__ __forceinline__ auto smaller(A a, B b) -> decltype(a + b) {
  return (a < b) | (a != a) ? a : b;
}
template <int BYTES> struct Raw;
template <> struct Raw<1> { using type = unsigned char; };
template <> struct Raw<2> { using type = unsigned short; };
template <> struct Raw<4> { using type = unsigned int; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<16> { using type = uint4; };
template <int V, class X> struct Pack {
  static constexpr int bytes = V * sizeof(X);
  static constexpr int width = bytes < 16 ? bytes : 16;
  static constexpr int count = bytes / width;
  using raw = typename Raw<width>::type;
  static_assert(bytes % width == 0, "vectors are powers of two");
  union { raw parts[count]; X items[V]; };
  __device__ Pack() {}
};
template <bool STREAM, int V, class X, class Y>
__device__ __forceinline__ void load(const X* p, Y (&out)[V]) {
  Pack<V, X> pack;
  const auto* from = reinterpret_cast<const typename Pack<V, X>::raw*>(p);
#pragma unroll
  for (int i = 0; i < Pack<V, X>::count; ++i)
    pack.parts[i] = STREAM ? __ldcs(from + i) : __ldg(from + i);
#pragma unroll
  for (int j = 0; j < V; ++j) out[j] = value_of(pack.items[j]);
}
template <bool STREAM, int V, class X>
__device__ __forceinline__ void store(X* p, const X (&values)[V]) {
  Pack<V, X> pack;
#pragma unroll
  for (int j = 0; j < V; ++j) pack.items[j] = values[j];
  auto* to = reinterpret_cast<typename Pack<V, X>::raw*>(p);
#pragma unroll
  for (int i = 0; i < Pack<V, X>::count; ++i) {
    if (STREAM) __stcs(to + i, pack.parts[i]); else to[i] = pack.parts[i];
  }
}
// The value every thread of a group of T (a power of two) gets. Wider ones own their block.
template <int T, class X, class F>
__device__ __forceinline__ X group_reduce(X x, F f, X identity) {
#pragma unroll
  for (int o = (T < 32 ? T : 32) / 2; o > 0; o /= 2) x = f(x, __shfl_xor_sync(0xffffffffu, x, o));
  if constexpr (T > 32) {
    __shared__ X parts[T / 32];
    __syncthreads();  // The previous row's readers are done.
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < T / 32 ? parts[threadIdx.x % 32] : identity;
#pragma unroll
    for (int o = 16; o > 0; o /= 2) x = f(x, __shfl_xor_sync(0xffffffffu, x, o));
  }
  return x;
}
"""


MINUS = "#define MINUS __fsub_rn  // Never one operation with the product before it.\n"
MATH = {
    "precise": MINUS + "#define EXP expf\n#define LOG logf\n#define TANH tanhf\n",
    "fast": (
        MINUS + "#define EXP __expf\n#define LOG __logf\n"
        "__device__ __forceinline__ float fast_tanh(float x) {\n"
        "  const float a = fabsf(x);  // The series keeps relative accuracy near zero.\n"
        "  const float y = a < 0.25f ? a * (1.0f + a * a * (-0.33333333f + a * a * (0.13333333f"
        " - 0.053968254f * a * a))) : 1.0f - 2.0f / (1.0f + __expf(2.0f * a));\n"
        "  return x != x ? x : copysignf(y, x);\n}\n#define TANH fast_tanh\n"
    ),
}


GELU = (
    "__device__ __forceinline__ float gelu_tanh(float x) {\n"
    "  return 0.5f * x * (1.0f + TANH(0.79788456080286536f * (x + 0.044715f * x * x * x)));\n}\n"
)


@dataclass(frozen=True)
class Kernels:
    """Device source and the names of its `__global__` functions."""

    source: str
    names: tuple[str, ...]


def prelude(features: Features) -> str:
    return PRELUDE + MATH[str(features["math"])] + GELU


def base(operand: Operand) -> str:
    return f"{operand.name}_row"


def pointers(program: Program) -> str:
    """Declarations of every operand's and result's row."""
    lines = [
        f"const {C_TYPES[o.dtype]}* __restrict__ const {o.name}_row = {o.name} + {row_offset(o)};"
        for o in program.operands
        if o.column
    ]
    lines += [
        f"{C_TYPES[r.dtype]}* __restrict__ const {r.name}_row = {r.name} + "
        f"{TURNED if r.turned else 'row * columns'};"
        for r in program.results
        if r.element
    ]
    return "\n".join(lines) + "\n"


def load_line(program: Program, value: Value, features: Features, slot: str) -> str:
    operand = operand_of(program, value)
    streaming = features["loads"] == "streaming" and operand.row == "full"
    stream = "true" if streaming else "false"
    return f"load<{stream}, V>({base(operand)} + c, {value.name}_{slot});"


def item_code(sweep: Sweep, features: Features, slots: Mapping[str, str], live: str) -> str:
    """What one vector of columns contributes; loads are in the arrays named by `slots`."""
    lines = [f"{C_TYPES[r.dtype]} {r.name}_vector[V];" for r in sweep.results]
    lines += ["#pragma unroll", "for (int j = 0; j < V; ++j) {"]
    for value in sweep.elements:
        if value.name in slots and (value.op == "load" or value not in sweep.kept):
            lines.append(declare(value, f"{value.name}_{slots[value.name]}[j]"))
        else:
            lines.append(declare(value, expression(value)))
        if value in sweep.kept:
            lines.append(f"{value.name}_{slots[value.name]}[j] = {value.name};")
    lines += merges(sweep)
    lines += [f"{r.name}_vector[j] = {written(r, r.value)};" for r in sweep.results]
    lines.append("}")
    stream = "true" if features["stores"] == "streaming" else "false"
    lines += [
        f"{live}store<{stream}, V>({r.name}_row + c, {r.name}_vector);" for r in sweep.results
    ]
    return "\n".join(lines) + "\n"


def element_lines(program: Program, sweep: Sweep, place: Callable[[Operand], str]) -> list[str]:
    """Declarations of what one element of a row takes; `place` is where an operand's lies."""
    found = []
    for value in sweep.elements:
        if value.op == "load":
            text = f"value_of({place(operand_of(program, value))})"
        else:
            text = expression(value)
        found.append(declare(value, text))
    return found


def merges(sweep: Sweep) -> list[str]:
    """What every reduction takes of one element."""
    found = []
    for value in sweep.reductions:
        merged = COMBINE[value.op.removeprefix("reduce.")]
        found.append(f"{value.name}_part = {merged.format(value.name + '_part', value.args[0])};")
    return found


def lambda_of(value: Value) -> str:
    kind = TYPES[value.kind]
    merged = COMBINE[value.op.removeprefix("reduce.")].format("a", "b")
    return f"[]({kind} a, {kind} b) {{ return {merged}; }}"


def identity(value: Value) -> str:
    return f"({TYPES[value.kind]})({IDENTITY[value.op.removeprefix('reduce.')]})"


def parts(sweep: Sweep) -> str:
    return "".join(f"{TYPES[v.kind]} {v.name}_part = {identity(v)};\n" for v in sweep.reductions)


def own_reductions(sweep: Sweep) -> str:
    """Where a thread has all of a row."""
    return "".join(declare(v, f"{v.name}_part") + "\n" for v in sweep.reductions)


def group_reductions(sweep: Sweep, threads: int | str) -> str:
    return "".join(
        declare(v, f"group_reduce<{threads}>({v.name}_part, {lambda_of(v)}, {identity(v)})") + "\n"
        for v in sweep.reductions
    )


def row_code(program: Program, depth: int) -> str:
    return "\n".join(row_values(program, depth, lambda v: pick(program, v, base))) + "\n"


def row_stores(program: Program, depth: int, guard: str) -> str:
    return "".join(
        f"if ({guard}) {r.name}[row] = {written(r, r.value)};\n"
        for r in program.results
        if not r.element and program.value(r.value).depth == depth
    )


def signature(program: Program) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in parameters(program))
