"""Pooling, as terms: a reduction over windows of the last one, two or three dimensions."""

from __future__ import annotations

import math

from agent.features.arguments import dims_of, number, shaped
from agent.features.lower import Handler, Lowering
from agent.features.program import Steps, Window
from agent.features.terms import Group, Term, Unsupported
from sandbox.graph import Arg, Node

CUT_OFF = "no feature template for windows that are cut off"


def max_pool(low: Lowering, n: Node) -> Term:
    """Its values; where they lie is another output."""
    if low.arg(n, 5, "ceil_mode", False):
        raise Unsupported(CUT_OFF)
    return _pooled(low, n, "max", _window(low, n, low.arg(n, 4, "dilation", 1)))


def average_pool(low: Lowering, n: Node) -> Term:
    """What lies in the padding counts as zeros."""
    window, divisor = _window(low, n, 1), low.arg(n, 6, "divisor_override", None)
    counted = low.arg(n, 5, "count_include_pad", True) or divisor is not None
    padded = any(steps.padding for steps in window)
    if low.arg(n, 4, "ceil_mode", False) or (padded and not counted):
        raise Unsupported(CUT_OFF)
    count = math.prod(s.kernel for s in window) if divisor is None else number(divisor)
    return low.build.point("div", _pooled(low, n, "sum", window), float(count))


def _window(low: Lowering, n: Node, dilation: Arg) -> Window:
    """Without a stride, one beside the other; one figure counts for every dimension."""
    kernel = dims_of(n.args[1])
    stride = dims_of(low.arg(n, 2, "stride", ())) or kernel
    settings = (kernel, stride, dims_of(low.arg(n, 3, "padding", 0)), dims_of(dilation))
    each = (s * len(kernel) if len(s) == 1 else s for s in settings)
    return tuple(map(Steps, *each))


def _pooled(low: Lowering, n: Node, op: str, window: Window) -> Term:
    build, x, dims = low.build, shaped(low, n), len(window)
    if x.kind != "float":
        raise Unsupported(f"no feature template for {n.op} of integers")
    axes: list[Group] = list(x.axes[:-dims])
    for group, steps in zip(x.axes[-dims:], window, strict=True):
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
