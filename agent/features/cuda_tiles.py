"""Form `tiles`: a two-dimensional grid, x over a row's chunks and y over the rows; one kernel per
sweep.

Each block leaves one partial per reduction in a workspace; the last block of a row to arrive (or a
second kernel) combines them in a fixed order. Pointwise programs are the case without reductions.
"""

from __future__ import annotations

from agent.features.cuda_source import (
    Kernels,
    group_reductions,
    identity,
    item_code,
    lambda_of,
    load_line,
    parts,
    pointers,
    row_code,
    signature,
)
from agent.features.emit import Sweep, declare, parameters, sweeps, written
from agent.features.expr import TYPES
from agent.features.program import Program, Value
from agent.features.search import Features

COUNTED_ROWS = 65536
"""Arrival counters in device memory; more rows than that are finished by a second kernel."""


def reductions(program: Program) -> list[Value]:
    return [v for v in program.values if v.op.startswith("reduce.")]


def _slots(program: Program) -> str:
    """Typed views of the workspace: 8 bytes for each partial, then 8 for each row's value."""
    found = reductions(program)
    text = ""
    for i, v in enumerate(found):
        text += (
            f"{TYPES[v.kind]}* const {v.name}_parts = "
            f"reinterpret_cast<{TYPES[v.kind]}*>(work + {i} * rows * splits);\n"
            f"{TYPES[v.kind]}* const {v.name}_rows = reinterpret_cast<{TYPES[v.kind]}*>("
            f"work + {len(found)} * rows * splits + {i} * rows);\n"
        )
    return text


def _known(program: Program, depth: int) -> str:
    text = "".join(
        declare(v, f"{v.name}_rows[row]") + "\n" for v in reductions(program) if v.depth <= depth
    )
    return text + "".join(row_code(program, d) for d in range(depth + 1))


def kernels(program: Program, name: str, features: Features) -> Kernels:
    """For every sweep a vector and a scalar kernel, and where it reduces a finishing one."""
    source, names = "", []
    found = sweeps(program, False)
    work = ", long long* __restrict__ work, long long splits, int finish" if program.reduces else ""
    passed = ", ".join(n for _, n in parameters(program))
    passed += ", work, splits, finish" if program.reduces else ""
    if program.reduces and features["finish"] == "last_block":
        source += f"__device__ unsigned {name}_arrived[{COUNTED_ROWS}];\n"
    threads = int(features["threads"])
    for sweep in found:
        stem = f"{name}_sweep{sweep.depth}"
        if sweep.reductions:
            source += (
                f"__device__ __forceinline__ void {stem}_combine({signature(program)}{work}, "
                f"long long row) {{\n{_combine(program, sweep, features)}}}\n"
            )
        source += (
            f"template <int V>\n__device__ __forceinline__ void {stem}_body({signature(program)}"
            f"{work}) {{\n{_body(program, sweep, features, name, passed)}}}\n"
        )
        for kind, width in (("vector", features["vector"]), ("scalar", 1)):
            names.append(f"{stem}_{kind}")
            source += (
                f'extern "C" __global__ void __launch_bounds__({threads})\n'
                f"{names[-1]}({signature(program)}{work}) {{ {stem}_body<{width}>({passed}); }}\n"
            )
        if sweep.reductions:
            names.append(f"{stem}_finish")
            source += (
                f'extern "C" __global__ void __launch_bounds__({threads})\n'
                f"{names[-1]}({signature(program)}{work}) {{\n"
                "for (long long row = blockIdx.x; row < rows; row += gridDim.x)\n"
                f"  {stem}_combine({passed}, row);\n}}\n"
            )
    return Kernels(source, tuple(names))


def _body(program: Program, sweep: Sweep, features: Features, name: str, passed: str) -> str:
    unroll, stem = int(features["unroll"]), f"{name}_sweep{sweep.depth}"
    loads = [v for v in sweep.elements if v.op == "load"]
    slots = {v.name: "v[u]" for v in loads}
    arrays = "".join(f"{TYPES[v.kind]} {v.name}_v[U][V];\n" for v in loads)
    lines = "\n".join(load_line(program, v, features, "v[u]") for v in loads)
    column = "const long long c = begin + (long long)(u * T + t) * V;"
    text = (
        f"constexpr int T = {features['threads']}, U = {unroll};\nconst int t = threadIdx.x;\n"
        + (_slots(program) if program.reduces else "")
        + "for (long long row = blockIdx.y; row < rows; row += gridDim.y) {\n"
        + pointers(program)
        + _known(program, sweep.depth)
        + parts(sweep)
        + "for (long long begin = (long long)blockIdx.x * (T * U * V); begin < columns;\n"
        "     begin += (long long)gridDim.x * (T * U * V)) {\n"
        f"{arrays}#pragma unroll\nfor (int u = 0; u < U; ++u) {{\n{column}\n"
        f"if (c < columns) {{\n{lines}\n}}\n}}\n"
        f"#pragma unroll\nfor (int u = 0; u < U; ++u) {{\n{column}\n"
        f"if (c < columns) {{\n{item_code(sweep, features, slots, '')}}}\n}}\n}}\n"
    )
    if sweep.reductions:
        text += group_reductions(sweep, "T")
        text += "if (t == 0) {\n"
        text += "".join(
            f"{v.name}_parts[row * splits + blockIdx.x] = {v.name};\n" for v in sweep.reductions
        )
        text += "}\n"
        if features["finish"] == "last_block":
            text += (
                "if (finish) {\n__shared__ bool last;\n__syncthreads();\nif (t == 0) {\n"
                "  __threadfence();  // The partial is visible before the arrival is counted.\n"
                f"  last = atomicAdd(&{name}_arrived[row], 1u) == gridDim.x - 1;\n"
                f"  if (last) {{ {name}_arrived[row] = 0; __threadfence(); }}\n}}\n"
                f"__syncthreads();\nif (last) {stem}_combine({passed}, row);\n}}\n"
            )
    return text + "}\n"


def _combine(program: Program, sweep: Sweep, features: Features) -> str:
    """One block turns a row's partials into its values, in an order that never changes."""
    text = (
        f"constexpr int T = {features['threads']};\nconst int t = threadIdx.x;\n{_slots(program)}"
        + pointers(program)
        + _known(program, sweep.depth)
    )
    for v in sweep.reductions:
        text += (
            f"{TYPES[v.kind]} {v.name}_part = {identity(v)};\n"
            f"for (long long k = t; k < splits; k += T) {v.name}_part = {lambda_of(v)}("
            # Written by other blocks of this very launch: not through the read-only cache.
            f"{v.name}_part, __ldcg({v.name}_parts + row * splits + k));\n"
        )
    text += group_reductions(sweep, "T") + row_code(program, sweep.depth + 1)
    stores = "".join(f"{v.name}_rows[row] = {v.name};\n" for v in sweep.reductions)
    first = sweep.depth == sweeps(program, False)[0].depth
    for result in program.results:
        depth = program.value(result.value).depth
        if not result.element and (depth == sweep.depth + 1 or (first and depth <= sweep.depth)):
            stores += f"{result.name}[row] = {written(result, result.value)};\n"
    return text + f"if (t == 0) {{\n{stores}}}\n"


def launches(program: Program, features: Features, place: int) -> list[str]:
    """Lines of forward: one launch per sweep, two where a second kernel finishes."""
    name, threads = f"STAGE{place}", int(features["threads"])
    tile = threads * int(features["unroll"])
    vector, count = int(features["vector"]), len(reductions(program))
    lines = [
        f"tile = {tile * vector} if aligned else {tile}",
        "high = min(rows, 65535)",
        "splits = (columns + tile - 1) // tile",
    ]
    if features["grid"] == "persistent":
        lines.append(f"splits = min(splits, max({features['blocks']} // high, 1))")
    elif program.reduces:
        lines.append("splits = min(splits, 8192)")
    lines.append("splits = min(max(splits, 1), 2147483647)")
    if program.reduces:
        device = program.results[0].name
        lines += [
            f"work = torch.empty({count} * rows * (splits + 1), dtype=torch.int64, "
            f"device={device}.device)",
            f"finish = rows <= {COUNTED_ROWS}"
            if features["finish"] == "last_block"
            else "finish = False",
            "arguments += (work.data_ptr(), splits, numpy.int32(finish))",
        ]
    for sweep in sweeps(program, False):
        stem = f"{name}_SWEEP{sweep.depth}"
        lines += [
            f"kernel = {stem}_VECTOR if aligned else {stem}_SCALAR",
            f"kernel((splits, high), ({threads},), arguments, stream=stream)",
        ]
        if sweep.reductions:
            lines.append("if not finish:")
            lines.append(f"    {stem}_FINISH((high,), ({threads},), arguments, stream=stream)")
    return lines
