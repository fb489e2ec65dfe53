"""CUDA C++ source of a program for NVRTC, and the Python that launches it.

Form `rows`: a group of `threads` threads per row, `groups` rows per block. Rows of at most threads * vector * items
columns stay in registers between sweeps; longer ones are read again (softmax: once, by the online recurrence of Milakov
and Gimelshein 2018). Form `tiles` (cuda_tiles.py): a grid of blocks per row, for few and long rows and for pointwise
work. Every kernel exists twice: 16-byte vectors, and scalars for lengths or pointers that do not divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.features.emit import (
    BYTES,
    C_TYPES,
    COMBINE,
    IDENTITY,
    Sweep,
    closure,
    declare,
    operand_of,
    parameters,
    pick,
    row_offset,
    row_values,
    sweeps,
    written,
)
from agent.features.expr import TYPES, expression
from agent.features.host import sizes
from agent.features.program import Operand, Program, Value

Features = Mapping[str, str | int]
OPTIONS = ("--std=c++17",)

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
// The value every thread of a group of T (a power of two) gets. Groups above a warp own their block.
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

MATH = {
    "precise": "#define EXP expf\n#define LOG logf\n#define TANH tanhf\n",
    "fast": (
        "#define EXP __expf\n#define LOG __logf\n"
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

POOL: dict[str, tuple[str | int, ...]] = {
    "form": ("rows", "tiles"),
    "vector": (1, 2, 4, 8, 16),
    "threads": (8, 16, 32, 64, 128, 256, 512, 1024),
    "groups": (1, 2, 4, 8, 16),
    "items": (1, 2, 4, 8, 16),
    "unroll": (1, 2, 4, 8),
    "grid": ("tile", "persistent"),
    "blocks": (264, 528, 1056, 2112),
    "prefetch": (0, 1),
    "online": (1, 0),
    "registers": ("kept", "reread"),
    "loads": ("cached", "streaming"),
    "stores": ("plain", "streaming"),
    "math": ("precise", "fast"),
    "finish": ("last_block", "kernel"),
}
"""Every feature and its values. H200: 132 multiprocessors, hence blocks in multiples of 132."""


@dataclass(frozen=True)
class Kernels:
    """Device source and the names of its `__global__` functions."""

    source: str
    names: tuple[str, ...]


def default(program: Program) -> dict[str, str | int]:
    """A good start for the traced shape: 16-byte loads, about 8 to 32 elements a thread."""
    size = max((BYTES[o.dtype] for o in program.operands if o.column), default=4)
    vector = max(16 // max(size, 2), 1) if size <= 4 else 2
    columns, rows = program.column_count, program.row_count
    wide = not program.reduces or (rows < 132 and columns > 16384)
    features: dict[str, str | int] = {
        "form": "tiles" if wide else "rows",
        "vector": vector,
        "threads": 256,
        "groups": 1,
        "items": 4,
        "unroll": 4,
        "grid": "persistent" if wide and program.reduces else "tile",
        "blocks": 1056,
        "prefetch": 1,
        "online": 1,
        "registers": "kept",
        "loads": "cached",
        "stores": "plain",
        "math": "precise",
        "finish": "last_block",
    }
    if not wide:
        vectors = -(-columns // vector)
        threads = 8
        while threads < 1024 and threads * 4 < vectors and not (threads == 32 and vectors <= 256):
            threads *= 2
        features["threads"] = threads
        features["groups"] = max(128 // threads, 1) if threads <= 32 else 1
        items = 1
        while items * threads < vectors and items * vector < 32:
            items *= 2
        features["items"] = items
        if items * threads < vectors:  # Too long for registers: several streaming blocks each.
            features["threads"] = 512 if program.passes > 1 else 256
    return features


def others(program: Program) -> list[dict[str, str | int]]:
    """Decisively different starting points: other widths of a row's group, the other form."""
    start = default(program)
    found = []
    if start["form"] == "rows":
        threads, items = int(start["threads"]), int(start["items"])
        if threads >= 64 and items < 16:
            halved = {**start, "threads": threads // 2, "items": items * 2}
            found.append({**halved, "groups": 4 if threads == 64 else 1})
        if threads <= 512 and items > 1 and start["groups"] == 1:
            found.append({**start, "threads": threads * 2, "items": items // 2})
        found.append({**start, "items": 1, "unroll": 4})  # Re-read rows instead of keeping them.
    else:
        found.append({**start, "unroll": 2, "threads": 512})
        grid = "tile" if start["grid"] == "persistent" else "persistent"
        found.append({**start, "grid": grid})
    return found


def fits(features: Features) -> bool:
    """Whether the combination makes sense and can be launched."""
    threads, groups = int(features["threads"]), int(features["groups"])
    if features["form"] == "tiles":
        return threads >= 64 and groups == 1
    if threads > 32 and groups > 1:
        return False
    held = int(features["items"]) * int(features["vector"])
    return 32 <= threads * groups <= 1024 and held <= 64 and held * threads <= 65536


def mapping(features: Features) -> str:
    """The header's line: thread -> element, and the launch shape."""
    if features["form"] == "tiles":
        return (
            f"thread t of block (x, y) takes vectors of {features['vector']} columns of row y; "
            f"block {features['threads']}, grid (chunks, rows)"
        )
    return (
        f"{features['threads']} threads a row, vectors of {features['vector']} columns; "
        f"block ({features['threads']}, {features['groups']}), grid rows / {features['groups']}"
    )


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
        f"{C_TYPES[r.dtype]}* __restrict__ const {r.name}_row = {r.name} + row * columns;"
        for r in program.results
        if r.element
    ]
    return "\n".join(lines) + "\n"


def load_line(program: Program, value: Value, features: Features, slot: str) -> str:
    operand = operand_of(program, value)
    streaming = features["loads"] == "streaming" and operand.row == "full"
    stream = "true" if streaming else "false"
    return f"load<{stream}, V>({base(operand)} + c, {value.name}_{slot});"


def item_code(
    program: Program, sweep: Sweep, features: Features, slots: Mapping[str, str], live: str
) -> str:
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
    for value in sweep.reductions:
        merged = COMBINE[value.op.removeprefix("reduce.")]
        lines.append(f"{value.name}_part = {merged.format(value.name + '_part', value.args[0])};")
    lines += [f"{r.name}_vector[j] = {written(r, r.value)};" for r in sweep.results]
    lines.append("}")
    stream = "true" if features["stores"] == "streaming" else "false"
    lines += [
        f"{live}store<{stream}, V>({r.name}_row + c, {r.name}_vector);" for r in sweep.results
    ]
    return "\n".join(lines) + "\n"


def lambda_of(value: Value) -> str:
    kind = TYPES[value.kind]
    merged = COMBINE[value.op.removeprefix("reduce.")].format("a", "b")
    return f"[]({kind} a, {kind} b) {{ return {merged}; }}"


def identity(value: Value) -> str:
    return f"({TYPES[value.kind]})({IDENTITY[value.op.removeprefix('reduce.')]})"


def parts(sweep: Sweep) -> str:
    return "".join(
        f"{TYPES[v.kind]} {v.name}_part = {identity(v)};\n" for v in sweep.reductions
    )


def group_reductions(sweep: Sweep, threads: int | str) -> str:
    return "".join(
        declare(
            v, f"group_reduce<{threads}>({v.name}_part, {lambda_of(v)}, {identity(v)})"
        )
        + "\n"
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


def kernels(program: Program, name: str, features: Features) -> Kernels:
    """The device code of one program."""
    from agent.features import cuda_tiles

    if features["form"] == "tiles":
        return cuda_tiles.kernels(program, name, features)
    return _rows(program, name, features)


def _rows(program: Program, name: str, features: Features) -> Kernels:
    threads, groups = int(features["threads"]), int(features["groups"])
    vector, items = int(features["vector"]), int(features["items"])
    names = [n for _, n in parameters(program)]
    source = ""
    for form in ("short", "long"):
        source += (
            f"template <int V, int K>\n__device__ __forceinline__ void {name}_{form}("
            f"{signature(program)}) {{\n{_row_loop(program, form, features)}}}\n"
        )
    found = []
    for kind, width in (("vector", vector), ("scalar", 1)):
        for form in ("short", "long"):
            found.append(f"{name}_{form}_{kind}")
            source += (
                f'extern "C" __global__ void __launch_bounds__({threads * groups})\n'
                f"{found[-1]}({signature(program)}) {{\n"
                f"  {name}_{form}<{width}, {items * vector // width}>({', '.join(names)});\n}}\n"
            )
    return Kernels(source, tuple(found))


def _row_loop(program: Program, form: str, features: Features) -> str:
    threads, groups = int(features["threads"]), int(features["groups"])
    kept = form == "short"
    plan = sweeps(program, kept and features["registers"] == "kept")
    by_depth = {s.depth: s for s in plan}
    pairs = online_pairs(program) if form == "long" and features["online"] else {}
    held = _held(program, plan, features) if kept else {}
    body = pointers(program) + row_code(program, 0) + row_stores(program, 0, "live && t == 0")
    slots: dict[str, str] = {}
    for depth in range(max(v.depth for v in program.values) + 1):
        if depth in by_depth:
            sweep = by_depth[depth]
            if kept:
                body += _short_sweep(program, sweep, features, held, slots)
            else:
                body += _long_sweep(program, sweep, features, pairs)
            body += row_code(program, depth + 1)
            body += row_stores(program, depth + 1, "live && t == 0")
    return (
        f"constexpr int T = {threads};\nconst int t = threadIdx.x;\n"
        f"for (long long first = (long long)blockIdx.x * {groups}; first < rows; "
        f"first += (long long)gridDim.x * {groups}) {{\n"
        "// Every thread stays for the shuffles; rows past the end are computed and not stored.\n"
        "const bool live = first + threadIdx.y < rows;\n"
        f"const long long row = live ? first + threadIdx.y : rows - 1;\n{body}}}\n"
    )


def _held(program: Program, plan: tuple[Sweep, ...], features: Features) -> dict[str, int]:
    """Loads that stay in registers, with the sweep that fetches them."""
    found: dict[str, int] = {}
    for place, sweep in enumerate(plan):
        for value in sweep.elements:
            if value.op == "load" and value.name not in found:
                again = any(value in s.elements for s in plan[place + 1 :])
                reread = features["registers"] == "reread" and again
                early = bool(features["prefetch"]) and place > 0
                if not reread:
                    found[value.name] = plan[0].depth if early else sweep.depth
    return found


def _short_sweep(
    program: Program,
    sweep: Sweep,
    features: Features,
    held: Mapping[str, int],
    slots: dict[str, str],
) -> str:
    """Arrays are indexed by unrolled k only, so that they live in registers."""
    fetched = [
        program.value(n) for n, depth in held.items() if depth == sweep.depth and n not in slots
    ]
    text = "".join(f"{TYPES[v.kind]} {v.name}_r[K][V];\n" for v in (*fetched, *sweep.kept))
    column = "const int c = (k * T + t) * V;"
    if fetched:
        lines = "\n".join(load_line(program, v, features, "r[k]") for v in fetched)
        text += (
            f"#pragma unroll\nfor (int k = 0; k < K; ++k) {{\n{column}\n"
            f"if (c < columns) {{\n{lines}\n}}\n}}\n"
        )
    slots.update({v.name: "r[k]" for v in (*fetched, *sweep.kept)})
    inline = [v for v in sweep.elements if v.op == "load" and v.name not in slots]
    own = {**slots, **{v.name: "v" for v in inline}}
    loads = "".join(
        f"{TYPES[v.kind]} {v.name}_v[V];\n{load_line(program, v, features, 'v')}\n" for v in inline
    )
    return (
        f"{text}{parts(sweep)}#pragma unroll\nfor (int k = 0; k < K; ++k) {{\n{column}\n"
        f"if (c < columns) {{\n{loads}{item_code(program, sweep, features, own, 'if (live) ')}}}\n}}\n"
        f"{group_reductions(sweep, 'T')}"
    )


def online_pairs(program: Program) -> dict[str, str]:
    """Sums of exp(x - max(x)), each with its maximum: one sweep can make both."""
    names = {v.name: v for v in program.values}
    found: dict[str, str] = {}
    for value in program.values:
        if value.op != "reduce.sum" or names[str(value.args[0])].op != "exp":
            continue
        inner = names[str(names[str(value.args[0])].args[0])]
        if inner.op == "sub" and names[str(inner.args[1])].op == "reduce.max":
            top = names[str(inner.args[1])]
            if top.args[0] == inner.args[0] and value.depth == top.depth + 1:
                found[value.name] = top.name
    return found


def _long_sweep(
    program: Program, sweep: Sweep, features: Features, pairs: Mapping[str, str]
) -> str:
    """The row is read from memory (or a cache) in every sweep."""
    ready = [v for v in sweep.reductions if v.name in pairs]
    left = tuple(v for v in sweep.reductions if v.name not in pairs)
    roots = [str(v.args[0]) for v in left] + [r.value for r in sweep.results]
    own = Sweep(sweep.depth, left, sweep.results, closure(program, roots), ())
    text = "".join(declare(v, f"{v.name}_online") + "\n" for v in ready)
    if not roots:
        return text
    loads = [v for v in own.elements if v.op == "load"]
    slots = {v.name: "v" for v in loads}
    lines = "".join(
        f"{TYPES[v.kind]} {v.name}_v[V];\n{load_line(program, v, features, 'v')}\n" for v in loads
    )
    tops = {top: total for total, top in pairs.items() if top in {v.name for v in left}}
    item = item_code(program, own, features, slots, "if (live) ")
    after = ""
    for top, total in tops.items():
        x = program.value(top).args[0]
        text += f"float {total}_part = 0.0f;\n"
        item = _online_item(item, top, total, str(x))
        after += (
            f"const float {total}_online = group_reduce<T>({total}_part * "
            f"({top}_part == -INFINITY ? 0.0f : EXP({top}_part - {top})), "
            "[](float a, float b) { return a + b; }, 0.0f);\n"
        )
    return (
        f"{text}{parts(own)}#pragma unroll {features['unroll']}\n"
        "for (long long c = (long long)t * V; c < columns; c += T * V) {\n"
        f"{lines}{item}}}\n{group_reductions(own, 'T')}{after}"
    )


def _online_item(item: str, top: str, total: str, x: str) -> str:
    """Adds the rescaled sum to one vector's code: keeps x, then corrects for the new maximum."""
    head = f"float {total}_x[V];\nconst float {total}_old = {top}_part;\n"
    kept = item.replace(
        f"{top}_part = larger({top}_part, {x});",
        f"{top}_part = larger({top}_part, {x}); {total}_x[j] = {x};",
    )
    tail = (
        f"if ({total}_old != {top}_part && {total}_old != -INFINITY) "
        f"{total}_part *= EXP({total}_old - {top}_part);\n"
        f"if ({top}_part != -INFINITY) {{\n#pragma unroll\n"
        f"for (int j = 0; j < V; ++j) {total}_part += EXP({total}_x[j] - {top}_part);\n}}\n"
    )
    return head + kept + tail


def launches(
    program: Program, made: Kernels, features: Features, known: Mapping[str, str], place: int
) -> list[str]:
    """Lines of forward that launch the program, on torch's current stream."""
    from agent.features import cuda_tiles

    tensors = [known[o.source] for o in program.operands] + [r.name for r in program.results]
    arguments = [f"{t}.data_ptr()" for t in tensors]
    arguments += [s.replace("float(", "numpy.float32(", 1) for s in sizes(program)]
    lines = [f"stream = stream_of({tensors[0]})", *divisible(program, features, known)]
    lines.append(f"arguments = ({', '.join(arguments)})")
    if features["form"] == "tiles":
        return lines + cuda_tiles.launches(program, features, place)
    threads, groups = int(features["threads"]), int(features["groups"])
    capacity = threads * int(features["vector"]) * int(features["items"])
    blocks = f"(rows + {groups - 1}) // {groups}" if groups > 1 else "rows"
    limit = int(features["blocks"]) if features["grid"] == "persistent" else (1 << 31) - 1
    names = [n.upper() for n in made.names]
    return [
        *lines,
        f"kernel = ({names[0]} if aligned else {names[2]}) if columns <= {capacity} else "
        f"({names[1]} if aligned else {names[3]})",
        f"kernel((min({blocks}, {limit}),), ({threads}, {groups}), arguments, stream=stream)",
    ]


def divisible(program: Program, features: Features, known: Mapping[str, str]) -> list[str]:
    """Whether whole vectors cover every row, at aligned addresses."""
    vector = int(features["vector"])
    tensors = dict.fromkeys(known[o.source] for o in program.operands if o.column)
    if vector == 1 or not tensors:
        return [f"aligned = columns % {vector} == 0"]
    joined = " | ".join(f"{t}.data_ptr()" for t in tensors)
    return [f"aligned = columns % {vector} == 0 and ({joined}) % 16 == 0"]
