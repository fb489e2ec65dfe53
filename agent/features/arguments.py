"""What the nodes of a graph are given, as the handlers of operators ask for it."""

from __future__ import annotations

from agent.features.lower import Lowering
from agent.features.terms import Group, Term, Unsupported
from sandbox.graph import Arg, Node, Ref


def number(value: Arg) -> float | int:
    if isinstance(value, bool | int | float):
        return value
    raise Unsupported(f"no feature template for the argument {value!r}")


def dims_of(value: Arg) -> list[int]:
    if value is None:
        return []
    return [int(number(v)) for v in value] if isinstance(value, tuple) else [int(number(value))]


def padded(term: Term, shape: tuple[int, ...]) -> tuple[Group, ...]:
    return ((),) * (len(shape) - len(term.axes)) + term.axes


def source_of(low: Lowering, n: Node) -> Node:
    source = n.args[0]
    assert isinstance(source, Ref)
    return low.nodes[source.node]


def shaped(low: Lowering, n: Node) -> Term:
    """The reduced argument, every dimension of which must be a real one."""
    term, shape = low.term(n.args[0]), source_of(low, n).meta.shape
    axes = padded(term, shape)
    if any(low.build.size(g) != size for g, size in zip(axes, shape, strict=True)):
        raise Unsupported("no feature template for reductions of a broadcast tensor")
    return low.build.reshape(term, axes)
