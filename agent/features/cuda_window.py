"""Form `window`: pooling, a thread an output.

Neighbouring threads take neighbouring outputs, whose windows lie side by side or overlap: what one
has read the others find in the cache. What is computed of an element before it is pooled is
computed for every window that it lies in.
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
from agent.features.emit import Sweep, cyclic, sweeps
from agent.features.program import Program
from agent.features.search import Features


def kernels(program: Program, name: str, features: Features) -> Kernels:
    """One kernel, whatever the alignment."""
    text = (
        f'extern "C" __global__ void __launch_bounds__({features["threads"]})\n'
        f"{name}_window({signature(program)}) {{\n{_body(program, features)}}}\n"
    )
    return Kernels(text, (f"{name}_window",))


PLACE = """long long lead = row;
const auto place = [&](long long count) {  // Divisions of 64 bits would take as long as the rest.
if ((lead | count) >> 32) {
const long long found = lead % count;
lead /= count;
return (int)found;
}
const unsigned whole = (unsigned)lead / (unsigned)count;
const int found = (int)((unsigned)lead - whole * (unsigned)count);
lead = whole;
return found;
};
"""
"""Where an output lies along the last dimension that was not asked for."""


def _body(program: Program, features: Features) -> str:
    (sweep,) = sweeps(program, False)
    text = pointers(program)
    for depth in range(max(v.depth for v in program.values) + 1):
        text += row_code(program, depth) + row_stores(program, depth, "true")
        if depth == sweep.depth:
            text += _sweep(program, sweep, features)
    steps = program.window
    places = "".join(
        f"const int first{d} = place(count{d}) * {steps[d].stride} - {steps[d].padding};\n"
        for d in reversed(range(len(steps)))
    )
    return (
        f"const long long row = (long long)blockIdx.x * {features['threads']} + threadIdx.x;\n"
        f"if (row >= rows) return;\n{PLACE}{places}{_led(program, text)}"
    )


def _led(program: Program, text: str) -> str:
    """What does not vary within an image is told by the dimensions that lead it."""
    counts = program.spatial[len(program.spatial) // 2 :]
    image = " * ".join(count for count in counts if count != "1")
    for operand in program.operands:
        if operand.row == "cyclic" and operand.div == image:
            found = "lead" if operand.column else f"lead % {operand.name}_mod"
            text = text.replace(cyclic(operand), found)
    return text


def _sweep(program: Program, sweep: Sweep, features: Features) -> str:
    """Loops over the window's dimensions; what lies in the padding is left out."""
    lines, at = list[str](), "0"
    last = len(program.window) - 1
    for d, steps in enumerate(program.window):
        unrolled = d == last or features["loops"] == "unrolled"
        lines += [
            "#pragma unroll" + ("" if unrolled else " 1"),
            f"for (int k{d} = 0; k{d} < {steps.kernel}; ++k{d}) {{",
            f"const int i{d} = first{d} + k{d} * {steps.dilation};",
        ]
        if steps.padding:
            lines.append(f"if (i{d} < 0 || i{d} >= size{d}) continue;")
        lines.append(f"const long long c{d} = ({at}) * size{d} + i{d};")
        at = f"c{d}"
    lines += element_lines(program, sweep, lambda operand: f"{operand.name}_row[{at}]")
    lines += merges(sweep)
    inside = "\n".join(lines) + "\n" + "}\n" * (last + 1)
    return parts(sweep) + inside + own_reductions(sweep)


def launches(program: Program, features: Features, place: int) -> list[str]:
    """Lines of forward: as many blocks as the outputs fill."""
    threads = int(features["threads"])
    return [
        "if rows:",
        f"    STAGE{place}_WINDOW(((rows + {threads - 1}) // {threads},), ({threads},), arguments,"
        " stream=stream)",
    ]
