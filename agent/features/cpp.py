"""C++/OpenMP source of a program: rows in parallel, or (few rows) tiles of rows in parallel.

libmvec's vector exp, log, tanh and erf are declared by hand, so that no -ffast-math is needed and
NaN and infinity keep their meaning. Sums run in float over at most `chunk` columns and in double
beyond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.features.emit import (
    COMBINE,
    IDENTITY,
    Sweep,
    closure,
    declare,
    operand_of,
    parameters,
    pick,
    read,
    row_offset,
    row_values,
    sweeps,
    written,
)
from agent.features.expr import TYPES, expression
from agent.features.program import Operand, Program, Value
from agent.features.search import Features, Pool

PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <vector>
extern "C" {
#pragma omp declare simd notinbranch
float expf(float) noexcept;
#pragma omp declare simd notinbranch
float expm1f(float) noexcept;
#pragma omp declare simd notinbranch
float logf(float) noexcept;
#pragma omp declare simd notinbranch
float log1pf(float) noexcept;
#pragma omp declare simd notinbranch
float log2f(float) noexcept;
#pragma omp declare simd notinbranch
float powf(float, float) noexcept;
#pragma omp declare simd notinbranch
float sinf(float) noexcept;
#pragma omp declare simd notinbranch
float cosf(float) noexcept;
#pragma omp declare simd notinbranch
float tanhf(float) noexcept;
#pragma omp declare simd notinbranch
float erff(float) noexcept;
}
#define MINUS(a, b) ((a) - (b))
#define EXP expf
#define LOG logf
#define TANH tanhf
// NaN wins, as in torch; written without branches so that it vectorises.
template <class A, class B> static inline auto larger(A a, B b) -> decltype(a + b) {
  return ((a > b) | (a != a)) ? a : b;
}
template <class A, class B> static inline auto smaller(A a, B b) -> decltype(a + b) {
  return ((a < b) | (a != a)) ? a : b;
}
static inline float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
typedef _Float16 f16;
struct bf16 { uint16_t bits; };
static inline float to_float(f16 x) { return (float)x; }
static inline f16 f16_of(float x) { return (f16)x; }
static inline float to_float(bf16 x) {
  const uint32_t bits = (uint32_t)x.bits << 16;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
static inline bf16 bf16_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return bf16{(uint16_t)((x != x ? 0x7fc00000u : rounded) >> 16)};
}
static float* scratch(long long count) {
  static thread_local std::vector<float> storage;
  if ((long long)storage.size() < count) storage.resize(count);
  return storage.data();
}
"""

POOL: dict[str, tuple[str | int, ...]] = {
    "form": ("rows", "tiles"),
    "chunk": (1024, 4096, 16384, 65536),
    "keep": (1, 0),
    "schedule": ("static", "dynamic"),
    "vector_bits": (512, 256),
}
"""Every feature and its values, the usual default first."""


TURNED: dict[str, tuple[str | int, ...]] = {
    "form": ("turned",),
    "tile": (32, 16, 64, 128),
    "wide": (1, 2, 4, 8),
    "schedule": ("static", "dynamic"),
    "vector_bits": (512, 256),
}
"""Of programs with transposed operands: tiles of so many rows, and `wide` times as many columns."""


SCAN: dict[str, tuple[str | int, ...]] = {
    "form": ("scan",),
    "chunk": (1024, 256, 4096),
    "schedule": ("static", "dynamic"),
    "vector_bits": (512, 256),
}
"""Of programs with a prefix sum, which goes through chunks of a row one after the other."""
FORMS = {
    "rows": "row",
    "tiles": "chunk of a row",
    "turned": "tile of rows and columns",
    "scan": "row",
}
"""What a thread takes at a time."""


def pool(program: Program) -> Pool:
    """The features that matter to a program, and their values."""
    return TURNED if program.inner else SCAN if program.scan is not None else POOL


def default(program: Program) -> dict[str, str | int]:
    """A good start: rows in parallel unless there are few, chunks that stay in L1."""
    if pool(program) is not POOL:
        return {feature: values[0] for feature, values in pool(program).items()}
    rows_form = program.reduces and program.row_count >= 8
    return {
        "form": "rows" if rows_form else "tiles",
        "chunk": 4096 if rows_form else 16384,
        "keep": 1,
        "schedule": "static",
        "vector_bits": 512,
    }


def flags(features: Features) -> list[str]:
    """Compiler flags; none changes what NaN, infinity or signed zero mean."""
    return [
        "-O3", "-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno",
        "-fno-trapping-math", f"-mprefer-vector-width={features['vector_bits']}",
    ]  # fmt: skip


def kernel(program: Program, name: str, features: Features) -> str:
    """One `extern "C"` function."""
    arguments = ", ".join(f"{t} {n}" for t, n in parameters(program))
    form = {"rows": _rows, "tiles": _tiles, "turned": _turned, "scan": _scan}[str(features["form"])]
    body = form(program, features)
    return f'extern "C" void {name}({arguments}, int threads) {{\n{body}}}\n'


def _base(operand: Operand) -> str:
    return f"{operand.name}_row"


def _prologue(program: Program) -> str:
    """Row pointers of every operand and result that has columns."""
    lines = [
        f"const auto* __restrict__ {o.name}_row = {o.name} + {row_offset(o)};"
        for o in program.operands
        if o.column
    ]
    lines += [
        f"auto* __restrict__ {r.name}_row = {r.name} + row * columns;"
        for r in program.results
        if r.element
    ]
    return " ".join(lines)


def _row_code(program: Program, depth: int) -> str:
    lines = row_values(program, depth, lambda v: pick(program, v, _base))
    for result in program.results:
        value = program.value(result.value)
        if not result.element and value.depth == depth:
            lines.append(f"{result.name}[row] = {written(result, value.name)};")
    return "\n".join(lines) + "\n"


def _accumulator(value: Value) -> str:
    wide = value.op == "reduce.sum" and value.kind == "float"
    return "double" if wide else TYPES[value.kind]


def _loop(program: Program, sweep: Sweep, kept: dict[str, str]) -> str:
    """The vectorised loop over columns begin..end; partial results in `<name>_part`."""
    clauses, head, tail = "", "", ""
    for value in sweep.reductions:
        op = value.op.removeprefix("reduce.")
        head += f"{TYPES[value.kind]} {value.name}_part = {IDENTITY[op]};\n"
        clauses += f" reduction({'+' if op == 'sum' else op} : {value.name}_part)"
        if op != "sum":
            # A comparison drops NaN; an own flag is 4 times as fast as a NaN-keeping reduction.
            head += f"unsigned {value.name}_nan = 0;\n"
            clauses += f" reduction(| : {value.name}_nan)"
            tail += f"if ({value.name}_nan) {value.name}_part = NAN;\n"
    lines = []
    for value in sweep.elements:
        there = f"{kept[value.name]}[c]" if value.name in kept and value not in sweep.kept else ""
        lines.append(declare(value, there or _element(program, value)))
        if value in sweep.kept:
            lines.append(f"{kept[value.name]}[c] = {value.name};")
    for value in sweep.reductions:
        op, part, x = value.op.removeprefix("reduce."), f"{value.name}_part", value.args[0]
        if op == "sum":
            lines.append(f"{part} += {x};")
        else:
            sign = ">" if op == "max" else "<"
            lines.append(
                f"{part} = {x} {sign} {part} ? {x} : {part}; {value.name}_nan |= {x} != {x};"
            )
    lines += [f"{r.name}_row[c] = {written(r, r.value)};" for r in sweep.results]
    body = "\n  ".join(lines)
    return (
        f"{head}#pragma omp simd{clauses}\n"
        f"for (long long c = begin; c < end; ++c) {{\n  {body}\n}}\n{tail}"
    )


def _rows(program: Program, features: Features) -> str:
    found = sweeps(program, bool(features["keep"]))
    names = [v.name for s in found for v in s.kept]
    kept = {name: f"{name}_kept" for name in names}
    code = _prologue(program) + "\n" + _row_code(program, 0)
    deepest = max(v.depth for v in program.values)
    by_depth = {s.depth: s for s in found}
    for depth in range(deepest + 1):
        if depth in by_depth:
            code += _chunks(program, by_depth[depth], features, kept)
        if depth < deepest:
            code += _row_code(program, depth + 1)
    space = f"float* const kept = scratch({len(names)} * columns);\n" if names else ""
    space += "".join(
        f"float* __restrict__ const {n}_kept = kept + {i} * columns;\n" for i, n in enumerate(names)
    )
    return (
        f"#pragma omp parallel num_threads(threads) if (threads > 1)\n{{\n{space}"
        f"#pragma omp for schedule({features['schedule']})\n"
        f"for (long long row = 0; row < rows; ++row) {{\n{code}}}\n}}\n"
    )


def _turned(program: Program, features: Features) -> str:
    """Tiles in parallel, whose lines of a transposed operand stay in L1 from row to row."""
    (sweep,) = sweeps(program, False)
    tile = int(features["tile"])
    wide = tile * int(features["wide"])
    return (
        f"const long long down = (inner + {tile - 1}) / {tile}, "
        f"across = (columns + {wide - 1}) / {wide};\n"
        "const long long tiles = inner ? rows / inner * down * across : 0;\n"
        "#pragma omp parallel for num_threads(threads) if (threads > 1) "
        f"schedule({features['schedule']})\n"
        "for (long long tile = 0; tile < tiles; ++tile) {\n"
        "const long long matrix = tile / (down * across), place = tile % (down * across);\n"
        f"const long long top = place / across * {tile}, begin = place % across * {wide};\n"
        f"const long long bottom = inner - top < {tile} ? inner : top + {tile};\n"
        f"const long long end = columns - begin < {wide} ? columns : begin + {wide};\n"
        "for (long long row = matrix * inner + top; row < matrix * inner + bottom; ++row) {\n"
        f"{_prologue(program)}\n{_row_code(program, 0)}{_loop(program, sweep, {})}}}\n}}\n"
    )


def _scan(program: Program, features: Features) -> str:
    """Rows in parallel; of each chunk what is summed, then its sums, then what follows: only the
    sums are serial.
    """
    (sweep,) = sweeps(program, False)
    scan, chunk = program.scan, features["chunk"]
    assert scan is not None
    first = _elements(program, closure(program, [str(scan.args[0])]), {})
    values = closure(program, [r.value for r in sweep.results], {scan.name})
    then = _elements(program, values, {scan.name: "sums[c - begin]"})
    then += [f"{r.name}_row[c] = {written(r, r.value)};" for r in sweep.results]
    loop = "for (long long c = begin; c < end; ++c) {\n  "
    return (
        "#pragma omp parallel for num_threads(threads) if (threads > 1) "
        f"schedule({features['schedule']})\n"
        "for (long long row = 0; row < rows; ++row) {\n"
        f"{_prologue(program)}\n{_row_code(program, 0)}"
        f"{TYPES[scan.kind]} sums[{chunk}];\n{'double' if scan.kind == 'float' else 'long long'} "
        "total = 0;\n"
        f"for (long long begin = 0; begin < columns; begin += {chunk}) {{\n"
        f"const long long end = columns - begin < {chunk} ? columns : begin + {chunk};\n"
        f"#pragma omp simd\n{loop}" + "\n  ".join(first) + f"\n  sums[c - begin] = {scan.args[0]};"
        "\n}\n"
        f"for (long long i = 0; i < end - begin; ++i) sums[i] = total += sums[i];\n"
        f"#pragma omp simd\n{loop}" + "\n  ".join(then) + "\n}\n}\n}\n"
    )


def _elements(program: Program, values: Sequence[Value], known: Mapping[str, str]) -> list[str]:
    """Declarations of a column's values; `known` ones are where they say."""
    return [declare(v, known.get(v.name) or _element(program, v)) for v in values]


def _element(program: Program, value: Value) -> str:
    """What a value is at column `c`."""
    if value.op != "load":
        return expression(value)
    operand = operand_of(program, value)
    at = "c * inner" if operand.turned else "c"
    return read(operand, f"{_base(operand)}[{at}]")


def _chunks(program: Program, sweep: Sweep, features: Features, kept: dict[str, str]) -> str:
    total = ""
    merge = ""
    final = ""
    for value in sweep.reductions:
        op = value.op.removeprefix("reduce.")
        total += f"{_accumulator(value)} {value.name}_total = {IDENTITY[op]};\n"
        merged = COMBINE[op].format(f"{value.name}_total", f"{value.name}_part")
        merge += f"{value.name}_total = {merged};\n"
        final += declare(value, f"({TYPES[value.kind]}){value.name}_total") + "\n"
    chunk = features["chunk"]
    return (
        f"{total}for (long long begin = 0; begin < columns; begin += {chunk}) {{\n"
        f"const long long end = columns - begin < {chunk} ? columns : begin + {chunk};\n"
        f"{_loop(program, sweep, kept)}{merge}}}\n{final}"
    )


def _tiles(program: Program, features: Features) -> str:
    """Every sweep parallel over (row, chunk); row values live in arrays between sweeps."""
    found = {s.depth: s for s in sweeps(program, False)}
    chunk, deepest = features["chunk"], max(v.depth for v in program.values)
    reductions = [v for v in program.values if v.op.startswith("reduce.")]
    code = f"const long long chunks = (columns + {chunk} - 1) / {chunk}, tiles = rows * chunks;\n"
    for value in reductions:
        vector = f"std::vector<{TYPES[value.kind]}>"
        code += f"{vector} {value.name}_parts(tiles), {value.name}_rows(rows);\n"
    code += "#pragma omp parallel num_threads(threads) if (threads > 1)\n{\n"
    for depth in range(deepest + 1):
        known = "".join(
            declare(v, f"{v.name}_rows[row]") + "\n" for v in reductions if v.depth <= depth
        )
        before = "".join(
            "\n".join(row_values(program, d, lambda v: pick(program, v, _base))) + "\n"
            for d in range(depth + 1)
        )
        if depth in found:
            sweep = found[depth]
            store = "".join(f"{v.name}_parts[tile] = {v.name}_part;\n" for v in sweep.reductions)
            code += (
                f"#pragma omp for schedule({features['schedule']})\n"
                "for (long long tile = 0; tile < tiles; ++tile) {\n"
                "const long long row = tile / chunks;\n"
                f"const long long begin = (tile - row * chunks) * {chunk};\n"
                f"const long long end = columns - begin < {chunk} ? columns : begin + {chunk};\n"
                f"{_prologue(program)}\n{known}{before}"
                f"{_loop(program, sweep, {})}{store}}}\n"
            )
            code += _merge(sweep)
        code += _row_results(program, depth, known + before)
    return code + "}\n"


def _merge(sweep: Sweep) -> str:
    if not sweep.reductions:
        return ""
    body = ""
    for value in sweep.reductions:
        op = value.op.removeprefix("reduce.")
        merged = COMBINE[op].format("total", f"{value.name}_parts[row * chunks + k]")
        body += (
            f"{{ {_accumulator(value)} total = {IDENTITY[op]};\n"
            f"for (long long k = 0; k < chunks; ++k) total = {merged};\n"
            f"{value.name}_rows[row] = total; }}\n"
        )
    return f"#pragma omp for\nfor (long long row = 0; row < rows; ++row) {{\n{body}}}\n"


def _row_results(program: Program, depth: int, code: str) -> str:
    stores = "".join(
        f"{r.name}[row] = {written(r, r.value)};\n"
        for r in program.results
        if not r.element and program.value(r.value).depth == depth
    )
    if not stores:
        return ""
    return (
        "#pragma omp for\nfor (long long row = 0; row < rows; ++row) {\n"
        f"{_prologue(program)}\n{code}{stores}}}\n"
    )
