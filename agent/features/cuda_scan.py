"""Form `scan`: prefix sums along the columns, a block a row, and what is computed on the way.

Each thread sums its own columns, a warp shuffles its threads' sums, the block adds its warps'; what
lies left of the block's columns is carried in double precision.
"""

from __future__ import annotations

from agent.features.cuda_source import Kernels, load_line, pointers, row_code, signature
from agent.features.emit import C_TYPES, closure, declare, parameters, sweeps, written
from agent.features.expr import TYPES, expression
from agent.features.program import Program, Value
from agent.features.search import Features


def kernels(program: Program, name: str, features: Features) -> Kernels:
    """With vectors and with scalars."""
    threads = int(features["threads"])
    passed = ", ".join(n for _, n in parameters(program))
    source = (
        f"template <int V>\n__device__ __forceinline__ void {name}_body({signature(program)}) {{\n"
        f"{_body(program, features)}}}\n"
    )
    names = []
    for kind, width in (("vector", features["vector"]), ("scalar", 1)):
        names.append(f"{name}_scan_{kind}")
        source += (
            f'extern "C" __global__ void __launch_bounds__({threads})\n'
            f"{names[-1]}({signature(program)}) {{ {name}_body<{width}>({passed}); }}\n"
        )
    return Kernels(source, tuple(names))


def _body(program: Program, features: Features) -> str:
    (sweep,) = sweeps(program, False)
    scan = program.scan
    assert scan is not None
    kind = TYPES[scan.kind]
    wide = "double" if scan.kind == "float" else kind
    loads = [v for v in sweep.elements if v.op == "load"]
    arrays = "".join(f"{TYPES[v.kind]} {v.name}_v[V];\n" for v in loads)
    arrays += "".join(f"{C_TYPES[r.dtype]} {r.name}_vector[V];\n" for r in sweep.results)
    lines = "\n".join(load_line(program, v, features, "v") for v in loads)
    stream = "true" if features["stores"] == "streaming" else "false"
    stores = "\n".join(
        f"store<{stream}, V>({r.name}_row + c, {r.name}_vector);" for r in sweep.results
    )
    before = closure(program, [str(scan.args[0])])
    after = closure(program, [r.value for r in sweep.results], {scan.name})
    results = "\n".join(f"{r.name}_vector[j] = {written(r, r.value)};" for r in sweep.results)
    return (
        f"constexpr int T = {features['threads']};\n"
        "const int t = threadIdx.x, lane = t % 32, warp = t / 32;\n"
        f"__shared__ {kind} totals[T / 32];\n"
        "for (long long row = blockIdx.x; row < rows; row += gridDim.x) {\n"
        f"{pointers(program)}{row_code(program, 0)}{wide} carry = 0;\n"
        "for (long long begin = 0; begin < columns; begin += T * V) {\n"
        f"const long long c = begin + (long long)t * V;\n{arrays}{kind} scanned[V], own = 0;\n"
        f"if (c < columns) {{\n{lines}\n#pragma unroll\nfor (int j = 0; j < V; ++j) {{\n"
        f"{_values(before, scan)}own += {scan.args[0]};\nscanned[j] = own;\n}}\n}}\n"
        f"{kind} sum = own;\n#pragma unroll\nfor (int o = 1; o < 32; o *= 2) {{\n"
        f"const {kind} x = __shfl_up_sync(0xffffffffu, sum, o);\nif (lane >= o) sum += x;\n}}\n"
        "if (lane == 31) totals[warp] = sum;\n"
        f"{kind} left = __shfl_up_sync(0xffffffffu, sum, 1);\nif (lane == 0) left = 0;\n"
        f"__syncthreads();\n{kind} ahead = 0, whole = 0;\n#pragma unroll\n"
        "for (int w = 0; w < T / 32; ++w) {\nif (w < warp) ahead += totals[w];\n"
        f"whole += totals[w];\n}}\nconst {kind} offset = ({kind})(carry + ahead + left);\n"
        "if (c < columns) {\n#pragma unroll\nfor (int j = 0; j < V; ++j) {\n"
        f"{_values(after, scan)}{results}\n}}\n{stores}\n}}\n"
        "carry += whole;\n__syncthreads();  // The totals have been read.\n}\n}\n"
    )


def _values(values: tuple[Value, ...], scan: Value) -> str:
    lines = []
    for value in values:
        if value.op == "load":
            lines.append(declare(value, f"{value.name}_v[j]"))
        elif value is scan:
            lines.append(declare(value, "scanned[j] + offset"))
        else:
            lines.append(declare(value, expression(value)))
    return "".join(f"{line}\n" for line in lines)


def launches(program: Program, features: Features, place: int) -> list[str]:
    """Lines of forward: one block a row."""
    return [
        f"kernel = STAGE{place}_SCAN_VECTOR if aligned else STAGE{place}_SCAN_SCALAR",
        "if rows * columns:",
        f"    kernel((min(rows, 2147483647),), ({features['threads']},), arguments, stream=stream)",
    ]
