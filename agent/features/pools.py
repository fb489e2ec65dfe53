"""Pooling, as terms: a reduction over windows of the last one, two or three dimensions."""

from __future__ import annotations

import math

from agent.features.arguments import dims_of, number, shaped
from agent.features.lower import Handler, Lowering
from agent.features.program import Window
from agent.features.terms import Group, Term, Unsupported
from sandbox.graph import Arg, Node


def max_pool(low: Lowering, n: Node) -> Term:
    """Its values; where they lie is another output."""
    kernel = tuple(dims_of(n.args[1]))
    if low.arg(n, 5, "ceil_mode", False):
        raise Unsupported("no feature template for windows that are cut off")
    window = Window(
        kernel,
        _each(low.arg(n, 2, "stride", ()), kernel, kernel),
        _each(low.arg(n, 3, "padding", 0), kernel, (0,) * len(kernel)),
        _each(low.arg(n, 4, "dilation", 1), kernel, (1,) * len(kernel)),
    )
    return _pooled(low, n, "max", window)


def average_pool(low: Lowering, n: Node) -> Term:
    """What lies in the padding counts as zeros."""
    kernel = tuple(dims_of(n.args[1]))
    window = Window(
        kernel,
        _each(low.arg(n, 2, "stride", ()), kernel, kernel),
        _each(low.arg(n, 3, "padding", 0), kernel, (0,) * len(kernel)),
        (1,) * len(kernel),
    )
    divisor = low.arg(n, 6, "divisor_override", None)
    counted = low.arg(n, 5, "count_include_pad", True) or divisor is not None
    if low.arg(n, 4, "ceil_mode", False) or (any(window.padding) and not counted):
        raise Unsupported("no feature template for windows that are cut off")
    count = math.prod(kernel) if divisor is None else number(divisor)
    return low.build.point("div", _pooled(low, n, "sum", window), float(count))


def _each(value: Arg, kernel: tuple[int, ...], usual: tuple[int, ...]) -> tuple[int, ...]:
    """A setting for each dimension of the windows."""
    found = tuple(dims_of(value)) or usual
    return found * len(kernel) if len(found) == 1 else found


def _pooled(low: Lowering, n: Node, op: str, window: Window) -> Term:
    build, x, dims = low.build, shaped(low, n), len(window.kernel)
    if x.kind != "float":
        raise Unsupported(f"no feature template for {n.op} of integers")
    axes: list[Group] = list(x.axes[:-dims])
    for group, steps in zip(x.axes[-dims:], window.steps, strict=True):
        size, text = build.size(group), build.expression(group)
        count = steps.outputs(size)
        axes.append((build.atom(steps.text(text), count),) if count != 1 else ())
    return build.make(f"window.{op}", (x,), "float", axes, window=window)


POOLS: dict[str, Handler] = {
    "aten.max_pool2d_with_indices": max_pool,
    "aten.max_pool3d_with_indices": max_pool,
    "aten.avg_pool2d": average_pool,
    "aten.avg_pool3d": average_pool,
}
