"""Form `strided`: reductions along a dimension that is not the last, a thread a row.

Neighbouring threads take neighbouring rows, whose elements lie side by side: every step along the
reduced dimension is one coalesced read of a warp. Sweeps read again what caches may still hold.
"""

from __future__ import annotations

from agent.features.cuda_source import (
    Kernels,
    element_lines,
    merges,
    own_reductions,
    parts,
    pointers,
    row_code,
    row_stores,
    signature,
)
from agent.features.emit import Sweep, sweeps, written
from agent.features.program import Operand, Program
from agent.features.search import Features

MOST = 1 << 14
"""Elements of a row: one thread takes them one after another."""


def kernels(program: Program, name: str, features: Features) -> Kernels:
    """One kernel, whatever the alignment."""
    text = (
        f'extern "C" __global__ void __launch_bounds__({features["threads"]})\n'
        f"{name}_strided({signature(program)}) {{\n{_body(program, features)}}}\n"
    )
    return Kernels(text, (f"{name}_strided",))


def _body(program: Program, features: Features) -> str:
    by_depth = {sweep.depth: sweep for sweep in sweeps(program, False)}
    text = (
        f"const long long row = (long long)blockIdx.x * {features['threads']} + threadIdx.x;\n"
        f"if (row >= rows) return;\n{pointers(program)}"
    )
    for depth in range(max(v.depth for v in program.values) + 1):
        text += row_code(program, depth) + row_stores(program, depth, "true")
        if depth in by_depth:
            text += _sweep(program, by_depth[depth], features)
    return text


def _sweep(program: Program, sweep: Sweep, features: Features) -> str:
    def place(operand: Operand) -> str:
        return f"{operand.name}_row[{'c * inner' if operand.turned else 'c'}]"

    lines = element_lines(program, sweep, place)
    lines += merges(sweep)
    lines += [f"{r.name}_row[c * inner] = {written(r, r.value)};" for r in sweep.results]
    inside = "\n".join(lines)
    return (
        f"{parts(sweep)}#pragma unroll {features['unroll']}\n"
        f"for (long long c = 0; c < columns; ++c) {{\n{inside}\n}}\n{own_reductions(sweep)}"
    )


def launches(program: Program, features: Features, place: int) -> list[str]:
    """Lines of forward: as many blocks as the rows fill."""
    threads = int(features["threads"])
    return [
        f"inner = {program.inner}",
        "if rows:",
        f"    STAGE{place}_STRIDED(((rows + {threads - 1}) // {threads},), ({threads},), arguments,"
        " stream=stream)",
    ]
