"""What normalises, as terms: layer, batch, instance and group norm, softmax."""

from __future__ import annotations

import math

from agent.features.arguments import dims_of, number, shaped
from agent.features.lower import Effect, Lowering
from agent.features.terms import Term, Unsupported
from sandbox.graph import Arg, Node, Ref

PARTS = 64
"""At most, that vectors are dealt out to; a power of two."""


def layer_norm(low: Lowering, n: Node) -> Term:
    b, x = low.build, shaped(low, n)
    dims = list(range(len(x.axes) - len(dims_of(n.args[1])), len(x.axes)))
    eps = float(number(n.args[4]))
    mean, variance = b.mean(x, dims, True), b.variance(x, dims, True, 0)
    out = b.point("mul", b.point("sub", x, mean), b.point("rsqrt", b.point("add", variance, eps)))
    if n.args[2] is not None:
        out = b.point("mul", out, low.term(n.args[2]))
    return b.point("add", out, low.term(n.args[3])) if n.args[3] is not None else out


def batch_norm(low: Lowering, n: Node) -> Term:
    """With running statistics, four figures per channel, the second dimension; without any, as
    instance norm has it, those of this very input.
    """
    b, x = low.build, shaped(low, n)
    eps = float(number(n.args[-1]))
    if n.op.startswith("aten.native_batch_norm") and n.args[5]:
        if n.args[3] is not None:
            return _affine(low, _learning(low, n, x, eps), n.args[1], n.args[2])
        rest = [d for d in range(len(x.axes)) if d != 1]
        mean, variance = b.mean(x, rest, True), b.variance(x, rest, True, 0)
    else:
        mean, variance = _channel(low, x, n.args[3]), _channel(low, x, n.args[4])
    out = b.point("mul", b.point("sub", x, mean), b.point("rsqrt", b.point("add", variance, eps)))
    return _affine(low, out, n.args[1], n.args[2])


def _learning(low: Lowering, n: Node, x: Term, eps: float) -> Term:
    """By the figures of a batch, which the running ones move to. Those of each part of a channel
    are taken first, and then, of these, the channel's (Chan, Golub, LeVeque 1979); what is
    normalised by them is a program behind.
    """
    b, momentum = low.build, float(number(n.args[6]))
    parts, inside = _parts(low, x)
    mean, variance = b.mean(parts, inside, True), b.variance(parts, inside, True, 0)
    spread = b.point("add", b.mean(variance, [0], True), b.variance(mean, [0], True, 0))
    axes = [group if i == 1 else () for i, group in enumerate(x.axes)]
    channels = {3: b.reshape(b.mean(mean, [0], True), axes), 4: b.reshape(spread, axes)}
    count = b.expression([a for i, group in enumerate(x.axes) if i != 1 for a in group])
    for place, term in channels.items():
        buffer, name = n.args[place], f"{n.name} {place}"
        assert isinstance(buffer, Ref)
        low.changes(low.nodes[buffer.node], n)
        low.values[name] = term
        running = low.spoken[buffer.node]
        unbiased = f" * (({count}) / (({count}) - 1))" if place == 4 else ""
        text = f"{running}.lerp_(({{}}.reshape(-1){unbiased}).to({running}.dtype), {momentum!r})"
        low.effects.append(Effect(text, name))
    whole, spread = (b.apart(term) for term in channels.values())
    return b.point("mul", b.point("sub", x, whole), b.point("rsqrt", b.point("add", spread, eps)))


def _parts(low: Lowering, x: Term) -> tuple[Term, list[int]]:
    """Equal parts of every channel along the first dimension, and the dimensions of one: an image's
    lies in one piece; vectors are dealt out, for a channel's would be one thread's.
    """
    if any(x.axes[2:]):
        return x, list(range(2, len(x.axes)))
    b, count = low.build, math.gcd(low.build.size(x.axes[0]), PARTS)
    if count == 1 or len(x.axes[0]) > 1:
        raise Unsupported("no feature template for batch norm of so many vectors in train mode")
    outer, inner = b.split(x.axes[0][0], count)
    return b.reshape(x, (outer, inner, x.axes[1])), [1]


def group_norm(low: Lowering, n: Node) -> Term:
    """Statistics of each group of channels, which is one part of their dimension. Where there are a
    scale and a shift for each channel of several elements they are a program of their own behind
    it: within a group's elements they would vary by the channel.
    """
    b, x, groups, eps = low.build, shaped(low, n), int(number(n.args[6])), number(n.args[7])
    channels = x.axes[1]
    if len(channels) > 1:
        raise Unsupported("no feature template for group norm of merged dimensions")
    outer, inner = b.split(channels[0], groups) if channels else ((), ())
    parts = b.reshape(x, (x.axes[0], outer, inner, *x.axes[2:]))
    dims = list(range(2, len(parts.axes)))
    mean, variance = b.mean(parts, dims, True), b.variance(parts, dims, True, 0)
    scale = b.point("rsqrt", b.point("add", variance, float(eps)))
    if n.args[1] is not None and any(x.axes[2:]):
        mean, scale = b.apart(mean), b.apart(scale)
    out = b.point("mul", b.point("sub", parts, mean), scale)
    return _affine(low, b.reshape(out, x.axes), n.args[1], n.args[2])


def _channel(low: Lowering, x: Term, arg: Arg) -> Term:
    """One figure for each channel, the second dimension of `x`."""
    term = low.term(arg)
    return low.build.reshape(term, (*term.axes, *[()] * (len(x.axes) - 2)))


def _affine(low: Lowering, x: Term, weight: Arg, bias: Arg) -> Term:
    """Scaled and shifted by channel, where there is what to do so with."""
    out = x if weight is None else low.build.point("mul", x, _channel(low, x, weight))
    return out if bias is None else low.build.point("add", out, _channel(low, x, bias))


def softmax(low: Lowering, n: Node) -> Term:
    b, x, dims = low.build, shaped(low, n), dims_of(n.args[1])
    shifted = b.point("shift", x, b.reduce("max", x, dims, True))
    powers = b.point("exp", shifted)
    total = b.reduce("sum", powers, dims, True)
    if n.op.startswith("aten._log_softmax"):
        return b.point("sub", shifted, b.point("log", total))
    return b.point("mul", powers, b.point("reciprocal", total))
