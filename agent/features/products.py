"""Products that the vendor's library computes: what follows them is fused, they are not.

A product of inputs, parameters and their permutations is a tensor that `forward` computes first;
to the programs after it, it is one more operand. A bias is added by the program, which reads every
element of the product anyway, unless what follows could not have it. Products of what is computed,
and products that nothing follows, are left to the library altogether.
"""

from __future__ import annotations

from agent.features.lower import FLOATS, Group, Handler, Lowering, Term, Unsupported, product_name
from sandbox.graph import Arg, Node, Ref


def _spoken(low: Lowering, arg: Arg) -> str:
    """Python for a tensor that is known before any program runs."""
    if not isinstance(arg, Ref) or arg.node not in low.spoken:
        raise Unsupported("no feature template for a product of what is computed")
    return low.spoken[arg.node]


def _made(low: Lowering, node: Node, text: str, axes: list[Group]) -> Term:
    """The product as an operand."""
    if node.meta.dtype not in FLOATS:
        raise Unsupported(f"no feature template for a product of {node.meta.dtype}")
    low.products.append((product_name(node), text))
    return low.build.make("load", (node.name,), "float", axes)


def _fresh(low: Lowering, node: Node, dim: int) -> Group:
    size = node.meta.shape[dim]
    return (low.build.atom(f"{product_name(node)}.shape[{dim}]", size),) if size != 1 else ()


def _mm(low: Lowering, node: Node) -> Term:
    left, right = node.args[-2:]
    text = f"torch.mm({_spoken(low, left)}, {_spoken(low, right)})"
    return _made(low, node, text, [low.term(left).axes[0], low.term(right).axes[1]])


def _addmm(low: Lowering, node: Node) -> Term:
    if any(low.arg(node, 9, name, 1) != 1 for name in ("alpha", "beta")):
        raise Unsupported("no feature template for aten.addmm with factors")
    return low.build.point("add", _mm(low, node), low.term(node.args[0]))


def _bmm(low: Lowering, node: Node) -> Term:
    left, right = node.args[:2]
    text = f"torch.bmm({_spoken(low, left)}, {_spoken(low, right)})"
    a, b = low.term(left).axes, low.term(right).axes
    return _made(low, node, text, [low.build.unify(a[0], b[0]), a[1], b[2]])


def _convolution(low: Lowering, node: Node) -> Term:
    x, weight, bias, *settings = node.args
    inside = _spoken(low, bias) if low.library_bias and bias is not None else None
    text = f"torch.convolution({_spoken(low, x)}, {_spoken(low, weight)}, {inside}, "
    text += ", ".join(repr(list(s) if isinstance(s, tuple) else s) for s in settings) + ")"
    rest = [_fresh(low, node, dim) for dim in range(1, len(node.meta.shape))]
    term = _made(low, node, text, [low.term(x).axes[0], *rest])
    if bias is None or inside is not None:
        return term
    channel = low.term(bias)
    axes = (*channel.axes, *[()] * (len(rest) - 1))
    return low.build.point("add", term, low.build.reshape(channel, axes))


def _permute(low: Lowering, node: Node) -> Term:
    """Dimensions are told by what they are, so their order is one more view."""
    term, order = low.term(node.args[0]), node.args[1]
    assert isinstance(order, tuple)
    dims = [int(d) % len(order) for d in order if isinstance(d, int)]
    if len(term.axes) != len(dims):
        raise Unsupported("no feature template for aten.permute of a broadcast tensor")
    if isinstance(node.args[0], Ref) and node.args[0].node in low.spoken:
        low.spoken[node.name] = f"{low.spoken[node.args[0].node]}.permute({dims})"
    return low.build.reshape(term, [term.axes[d] for d in dims])


def flattened(low: Lowering, node: Node) -> None:
    """A view that merges all but the last dimension is known before any program, too, as is one
    that changes nothing (`torch.matmul` makes such).
    """
    source = node.args[0]
    if not isinstance(source, Ref) or source.node not in low.spoken:
        return
    text, before, after = (
        low.spoken[source.node],
        low.nodes[source.node].meta.shape,
        node.meta.shape,
    )
    if before == after:
        low.spoken[node.name] = text
    elif len(after) == 2 < len(before) and before[-1] == after[-1]:
        low.spoken[node.name] = f"{text}.reshape(-1, {text}.shape[-1])"


PRODUCTS: dict[str, Handler] = {
    "aten.mm": _mm,
    "aten.addmm": _addmm,
    "aten.bmm": _bmm,
    "aten.convolution": _convolution,
}
VIEWS: dict[str, Handler] = {"aten.permute": _permute}
