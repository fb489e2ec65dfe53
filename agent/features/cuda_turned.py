"""Form `turned`: pointwise programs with transposed operands, tile by tile through shared memory.

A block reads its tile of each transposed operand along that operand's own rows, and writes results
along theirs; a column more than the tile keeps both ways free of bank conflicts.
"""

from __future__ import annotations

from agent.features.cuda_source import Kernels, element_lines, pointers, row_code, signature
from agent.features.emit import BYTES, C_TYPES, sweeps, written
from agent.features.program import Operand, Program
from agent.features.search import Features

SHARED_BYTES = 48 << 10
"""Of a block, without asking for more."""


def fits(program: Program, features: Features) -> bool:
    """Whether the tiles of all transposed operands fit."""
    tile = int(features["tile"])
    item = sum(BYTES[o.dtype] for o in program.operands if o.turned)
    threads = tile * int(features["lines"])
    return 64 <= threads <= 1024 and item * tile * (tile + 1) <= SHARED_BYTES


def kernels(program: Program, name: str, features: Features) -> Kernels:
    """One kernel, whatever the alignment."""
    threads = int(features["tile"]) * int(features["lines"])
    text = (
        f'extern "C" __global__ void __launch_bounds__({threads})\n'
        f"{name}_turned({signature(program)}) {{\n{_body(program, features)}}}\n"
    )
    return Kernels(text, (f"{name}_turned",))


def _body(program: Program, features: Features) -> str:
    (sweep,) = sweeps(program, False)
    turned = [o for o in program.operands if o.turned]
    shared = "".join(f"__shared__ {C_TYPES[o.dtype]} {o.name}_tile[T][T + 1];\n" for o in turned)
    fill = "".join(
        f"{o.name}_tile[k][x] = {o.name}[(matrix * columns + left + k) * inner + top + x];\n"
        for o in turned
    )

    def place(operand: Operand) -> str:
        return f"{operand.name}_tile[x][k]" if operand.turned else f"{operand.name}_row[c]"

    lines = element_lines(program, sweep, place)
    lines += [f"{r.name}_row[c] = {written(r, r.value)};" for r in sweep.results]
    inside = "\n".join(lines)
    return (
        f"constexpr int T = {features['tile']}, LINES = {features['lines']};\n{shared}"
        "const int x = threadIdx.x % T, y = threadIdx.x / T;\n"
        "const long long down = (inner + T - 1) / T, across = (columns + T - 1) / T;\n"
        "const long long matrix = blockIdx.x / (down * across);\n"
        "const long long place = blockIdx.x % (down * across);\n"
        "const long long top = place / across * T, left = place % across * T;\n"
        "for (int k = y; k < T; k += LINES) {\n"
        f"if (left + k < columns && top + x < inner) {{\n{fill}}}\n}}\n__syncthreads();\n"
        "for (int k = y; k < T; k += LINES) {\n"
        "const long long row = matrix * inner + top + k, c = left + x;\n"
        "if (top + k < inner && c < columns) {\n"
        f"{pointers(program)}{row_code(program, 0)}{inside}\n}}\n}}\n"
    )


def launches(program: Program, features: Features, place: int) -> list[str]:
    """Lines of forward: one block a tile."""
    tile = int(features["tile"])
    return [
        f"inner = {program.inner}",
        f"tiles = -(-inner // {tile}) * -(-columns // {tile})",
        "matrices = rows // inner if inner else 0",
        "if matrices * tiles:",
        f"    STAGE{place}_TURNED((matrices * tiles,), ({tile * int(features['lines'])},), "
        "arguments, stream=stream)",
    ]
