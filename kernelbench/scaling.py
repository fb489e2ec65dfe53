"""A problem at a smaller batch, for a device that has no room for the whole one.

One rule: the module constant named `batch_size`, `batch`, `bs` or `b`, in any case, is halved,
again and again, down to 1. It is an integer or a product of integers, bound once, and get_inputs()
reads it, itself or through other constants. Of 250 problems of KernelBench's levels 1 to 3 (commit
423217d) 233 have such a one; a product of two plain matrices has none. Where SHAPES sets it,
every shape is scaled alike.

What comes out is another problem: less work for each launch, batch statistics over fewer samples.
Its text differs, and so does its Task.hash.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kernelbench.problem import bindings
from sandbox.errors import TaskError
from sandbox.types import Shape, Task

NAMES = ("batch_size", "batch", "bs", "b")


@dataclass(frozen=True)
class Scaling:
    """At what size a problem was taken; of the shape that is timed."""

    constant: str
    whole: int
    used: int

    def __str__(self) -> str:
        return f"{self.constant} {self.used} of {self.whole}"


@dataclass(frozen=True)
class _Batch:
    name: str
    value: int
    node: ast.expr
    """What the text binds it to."""

    def of(self, shape: Shape) -> int:
        """A shape's own, else the module's."""
        return int(dict(shape.constants).get(self.name, self.value))


def smaller(task: Task) -> Iterator[tuple[Scaling, Task]]:
    """The problem at half its batch, a quarter, and so on; raises TaskError where it has none."""
    batch = _batch(task)
    largest = max(batch.of(shape) for shape in task.shapes)
    timed = batch.of(task.shapes[0])
    for times in (2**n for n in range(1, largest.bit_length())):
        used = [max(1, batch.of(shape) // times) for shape in task.shapes]
        shapes = tuple(_scaled(s, batch.name, n) for s, n in zip(task.shapes, used, strict=True))
        source = _written(task.source, batch.node, max(1, batch.value // times))
        yield Scaling(batch.name, timed, used[0]), replace(task, source=source, shapes=shapes)


def _scaled(shape: Shape, name: str, used: int) -> Shape:
    return replace(
        shape, constants=tuple((k, used if k == name else v) for k, v in shape.constants)
    )


def _batch(task: Task) -> _Batch:
    """Raises TaskError where the problem has no batch that could be halved."""
    tree = ast.parse(task.source)
    bound = bindings(tree)
    read = _read(bound)
    expected = ", ".join(NAMES)
    found = [name for name in bound if name.lower() in NAMES and name in read]
    if not found:
        raise TaskError(f"get_inputs() reads no constant named {expected}")
    name = min(found, key=lambda each: NAMES.index(each.lower()))
    node = bound[name]
    value = _integer(node) if _stored(tree).count(name) == 1 else None
    if value is None or not isinstance(node, ast.expr):
        raise TaskError(f"{name} is not one integer, or product of integers, in the text")
    if all(_Batch(name, value, node).of(shape) < 2 for shape in task.shapes):
        raise TaskError(f"{name} is {value} already")
    return _Batch(name, value, node)


def _read(bound: dict[str, ast.AST]) -> set[str]:
    """Names that get_inputs() reads, and those that their values are made of."""
    found, waiting = set[str](), ["get_inputs"]
    while waiting:
        name = waiting.pop()
        if name in found or name not in bound:
            continue
        found.add(name)
        waiting += [n.id for n in ast.walk(bound[name]) if isinstance(n, ast.Name)]
    return found


def _stored(node: ast.AST) -> list[str]:
    """Names that are bound at module level, as often as they are."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return []
    own = [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
    return own + [name for child in ast.iter_child_nodes(node) for name in _stored(child)]


def _integer(node: ast.AST) -> int | None:
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() as value):
            return value
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _integer(left), _integer(right)
            return None if one is None or other is None else one * other
    return None


def _written(source: str, node: ast.expr, value: int) -> str:
    """The text with another value in the node's place; columns of a tree count bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    text = source.encode()
    return (text[:start] + str(value).encode() + text[end:]).decode()
