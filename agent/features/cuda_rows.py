"""Form `rows`: a group of `threads` threads per row, `groups` rows per block.

Rows of at most threads * vector * items columns stay in registers between sweeps; longer ones are
read again (softmax: once, by the online recurrence of Milakov and Gimelshein 2018).
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.features.cuda_source import (
    Kernels,
    group_reductions,
    item_code,
    load_line,
    parts,
    pointers,
    row_code,
    row_stores,
    signature,
)
from agent.features.emit import Sweep, closure, declare, parameters, sweeps
from agent.features.expr import TYPES
from agent.features.program import Program
from agent.features.search import Features


def kernels(program: Program, name: str, features: Features) -> Kernels:
    """Short and long rows, each with vectors and with scalars."""
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
    held = _held(plan, features) if kept else {}
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


def _held(plan: tuple[Sweep, ...], features: Features) -> dict[str, int]:
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
    item = item_code(sweep, features, own, "if (live) ")
    return (
        f"{text}{parts(sweep)}#pragma unroll\nfor (int k = 0; k < K; ++k) {{\n{column}\n"
        f"if (c < columns) {{\n{loads}{item}}}\n}}\n"
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
        if inner.op == "shift" and names[str(inner.args[1])].op == "reduce.max":
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
    item = item_code(own, features, slots, "if (live) ")
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
        f"for (int j = 0; j < V; ++j) {total}_part += EXP(MINUS({total}_x[j], {top}_part));\n}}\n"
    )
    return head + kept + tail


def launches(program: Program, features: Features, place: int) -> list[str]:
    """Lines of forward: the kernel that fits this call's row length and alignment."""
    threads, groups = int(features["threads"]), int(features["groups"])
    capacity = threads * int(features["vector"]) * int(features["items"])
    blocks = f"(rows + {groups - 1}) // {groups}" if groups > 1 else "rows"
    limit = int(features["blocks"]) if features["grid"] == "persistent" else (1 << 31) - 1
    stem = f"STAGE{place}"
    return [
        f"if columns <= {capacity}:",
        f"    kernel = {stem}_SHORT_VECTOR if aligned else {stem}_SHORT_SCALAR",
        "else:",
        f"    kernel = {stem}_LONG_VECTOR if aligned else {stem}_LONG_SCALAR",
        f"kernel((min({blocks}, {limit}),), ({threads}, {groups}), arguments, stream=stream)",
    ]
