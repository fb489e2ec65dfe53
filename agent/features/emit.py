"""What both code generators share: which values a sweep computes, in what order, from what.

Sweep `d` runs over the columns once every reduction of depth <= d is known; it feeds the reductions
of depth d + 1 and writes the element results of depth d. A value that a later sweep needs again is
either kept or computed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from agent.features.expr import TYPES, expression
from agent.features.program import Operand, Program, Result, Value

EXPENSIVE = {
    "exp", "expm1", "log", "log1p", "log2", "pow", "sin", "cos", "tanh", "erf", "sigmoid", "silu",
    "gelu", "gelu_tanh",
}  # fmt: skip
C_TYPES = {
    "float32": "float", "bfloat16": "bf16", "float16": "f16", "int64": "long long",
    "int32": "int", "int16": "short", "int8": "signed char", "uint8": "unsigned char",
    "bool": "bool",
}  # fmt: skip
BYTES = {
    "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1,
}  # fmt: skip
BEHIND = "  //= "
"""Between a declaration and the statement that it is part of."""
QUOTABLE = re.compile(r'\d+: (?!.*""")[ -\[\]-~]{1,100}')
"""Statements that a source may quote: ASCII that neither ends its string nor escapes anything."""
QUOTED = re.compile(r"^ *// (\d+: .*)$", re.MULTILINE)
IDENTITY = {"sum": "0", "max": "-INFINITY", "min": "INFINITY"}
COMBINE = {"sum": "{0} + {1}", "max": "larger({0}, {1})", "min": "smaller({0}, {1})"}


@dataclass(frozen=True)
class Sweep:
    """One run over the columns."""

    depth: int
    reductions: tuple[Value, ...]
    results: tuple[Result, ...]
    elements: tuple[Value, ...]
    """Element values computed in this sweep, loads included, in order."""
    kept: tuple[Value, ...]
    """Computed here and stored for later sweeps."""


def sweeps(program: Program, keep: bool) -> tuple[Sweep, ...]:
    """Every sweep the program needs; `keep` stores expensive values that are used again."""
    names = {v.name: v for v in program.values}
    deepest = max((v.depth for v in program.values), default=0)
    found: list[Sweep] = []
    stored: set[str] = set()
    for depth in range(deepest + 1):
        reductions = tuple(
            v for v in program.values if v.op.startswith("reduce.") and v.depth == depth + 1
        )
        results = tuple(r for r in program.results if r.element and names[r.value].depth == depth)
        roots = [str(v.args[0]) for v in reductions] + [r.value for r in results]
        elements = closure(program, roots, stored)
        later = _needed_later(program, depth, names)
        kept = tuple(
            v
            for v in elements
            if keep and v.name in later and v.name not in stored and _expensive(v, names)
        )
        if roots:
            found.append(Sweep(depth, reductions, results, elements, kept))
        stored |= {v.name for v in kept}
    return tuple(found)


def closure(
    program: Program, roots: Iterable[str], stop: Collection[str] = ()
) -> tuple[Value, ...]:
    """The element values behind `roots`, in order; nothing behind those in `stop`."""
    names = {v.name: v for v in program.values}
    seen: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        if name in seen or not names[name].element:
            continue
        seen.add(name)
        if name not in stop and names[name].op != "load":
            stack.extend(a for a in names[name].args if isinstance(a, str))
    return tuple(v for v in program.values if v.name in seen)


def _needed_later(program: Program, depth: int, names: dict[str, Value]) -> set[str]:
    later: set[str] = set()
    for value in program.values:
        sweep = value.depth - 1 if value.op.startswith("reduce.") else value.depth
        if sweep > depth and value.op != "pick":
            later |= {a for a in value.args if isinstance(a, str) and names[a].depth <= depth}
    return later


def _expensive(value: Value, names: dict[str, Value]) -> bool:
    if value.op in EXPENSIVE:
        return True
    if value.op in ("load", "const") or value.op.startswith("reduce."):
        return False
    return any(
        _expensive(names[a], names) for a in value.args if isinstance(a, str) and names[a].element
    )


def declare(value: Value, text: str) -> str:
    """On a line of its own; what it is part of stands behind it until `headed`."""
    line = bare(value, text)
    return f"{line}{BEHIND}{value.statement}" if QUOTABLE.fullmatch(value.statement) else line


def bare(value: Value, text: str) -> str:
    return f"const {TYPES[value.kind]} {value.name} = {text};"


def headed(source: str) -> str:
    """With each statement of the reference as a comment above the lines that it became."""
    lines: list[str] = []
    last = ""
    for line in source.splitlines():
        code, _, statement = line.partition(BEHIND)
        if statement and statement != last:
            lines.append(f"{code[: len(code) - len(code.lstrip())]}// {statement}")
        last = statement or ("" if "{" in line or "}" in line else last)
        lines.append(code)
    return "\n".join(lines) + "\n"


def operand_of(program: Program, value: Value) -> Operand:
    return next(o for o in program.operands if o.name == value.args[0])


def read(operand: Operand, text: str) -> str:
    """A loaded element as the type it is computed in."""
    if operand.dtype in ("bfloat16", "float16"):
        return f"to_float({text})"
    return text


def written(result: Result, text: str) -> str:
    if result.dtype in ("bfloat16", "float16"):
        return f"{C_TYPES[result.dtype]}_of({text})"
    return f"({C_TYPES[result.dtype]})({text})"


TURNED = "row / inner * columns * inner + row % inner"
"""C: where a row begins whose elements lie `inner` apart."""


def cyclic(operand: Operand) -> str:
    """C: the row of an operand that has fewer than there are."""
    return f"(row / {operand.name}_div) % {operand.name}_mod"


def row_offset(operand: Operand) -> str:
    """C: the first element of the operand for `row`."""
    if operand.turned:
        return TURNED
    if operand.row == "none":
        return f"columns * {operand.part[0]}" if operand.column and operand.part[0] else "0"
    row = cyclic(operand) if operand.row == "cyclic" else "row"
    if not operand.column:
        return row
    place, parts = operand.part
    scaled = f"({row}) * columns" + (f" * {parts}" if parts > 1 else "")
    return scaled + (f" + columns * {place}" if place else "")


def row_values(program: Program, depth: int, point: Callable[[Value], str]) -> list[str]:
    """Declarations of the row values of one depth, reductions excepted; `point` writes a pick."""
    lines = []
    for value in program.values:
        if value.element or value.depth != depth or value.op.startswith("reduce."):
            continue
        if value.op == "load":
            operand = operand_of(program, value)
            lines.append(declare(value, read(operand, f"{operand.name}[{row_offset(operand)}]")))
        elif value.op == "pick":
            lines.append(declare(value, point(value)))
        else:
            lines.append(declare(value, expression(value)))
    return lines


def pick(program: Program, value: Value, base: Callable[[Operand], str]) -> str:
    """One element of the row at a run-time column: its whole expression, evaluated there."""
    source, index = str(value.args[0]), value.args[1]
    lines = []
    for v in closure(program, [source]):
        if v.op == "load":
            operand = operand_of(program, v)
            lines.append(bare(v, read(operand, f"{base(operand)}[c]")))
        else:
            lines.append(bare(v, expression(v)))
    body = " ".join(lines)
    # An index that the reference would refuse must not read beyond the row.
    return (
        f"[&](long long c) {{ if (c < 0 || c >= columns) return ({TYPES[value.kind]})NAN; {body} "
        f"return {source}; }}({index})"
    )


def quoted(source: str) -> list[str]:
    """The statements of the reference that a source of the feature proposer's quotes, in order."""
    return sorted(set(QUOTED.findall(source)), key=lambda said: int(said.partition(":")[0]))


def parameters(program: Program) -> list[tuple[str, str]]:
    """(C type, name) of every kernel argument: operands, results, sizes, scalars."""
    found = [(f"const {C_TYPES[o.dtype]}* __restrict__", o.name) for o in program.operands]
    found += [(f"{C_TYPES[r.dtype]}* __restrict__", r.name) for r in program.results]
    found += [("long long", "rows"), ("long long", "columns")]
    found += [("long long", "inner")] if program.inner else []
    dims = range(len(program.spatial) // 2)
    found += [("long long", f"{what}{d}") for what in ("size", "count") for d in dims]
    for operand in program.operands:
        if operand.row == "cyclic":
            found += [("long long", f"{operand.name}_div"), ("long long", f"{operand.name}_mod")]
    found += [("float", f"s{i}") for i in range(len(program.scalars))]
    return found
