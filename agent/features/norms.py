"""What normalises, as terms: layer, batch, instance and group norm, softmax."""

from __future__ import annotations

from agent.features.arguments import dims_of, number, shaped
from agent.features.lower import Effect, Lowering, Term, Unsupported
from sandbox.graph import Arg, Node, Ref


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
    """By the figures of a batch, which the running ones move to. Those of each image's channel are
    taken first, which lies in one piece, and then, of these, each channel's (Chan, Golub, LeVeque
    1979); what is normalised by them is a program behind.
    """
    b, inside, momentum = low.build, list(range(2, len(x.axes))), float(number(n.args[6]))
    if not any(x.axes[2:]) or not x.axes[0]:
        raise Unsupported("no feature template for batch norm of vectors in train mode")
    mean, variance = b.mean(x, inside, True), b.variance(x, inside, True, 0)
    whole = b.mean(mean, [0], True)
    apart = b.variance(mean, [0], True, 0)
    spread = b.point("add", b.mean(variance, [0], True), apart)
    count = b.expression([a for i, group in enumerate(x.axes) if i != 1 for a in group])
    for place, term, factor in (
        (3, whole, ""),
        (4, spread, f" * (({count}) / (({count}) - 1))"),
    ):
        buffer = n.args[place]
        assert isinstance(buffer, Ref)
        low.changes(low.nodes[buffer.node], n)
        name = f"{n.name} {place}"
        low.values[name] = term
        running = low.spoken[buffer.node]
        text = f"{running}.lerp_(({{}}.reshape(-1){factor}).to({running}.dtype), {momentum!r})"
        low.effects.append(Effect(text, name))
    scale = b.point("rsqrt", b.point("add", b.apart(spread), eps))
    return b.point("mul", b.point("sub", x, b.apart(whole)), scale)


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
