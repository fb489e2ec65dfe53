"""Products that the vendor's library computes: what follows them is fused, they are not.

To the programs after it, a product is one more operand. What it takes of what is computed is left
in memory by the program before it. A bias is added by the program behind, which reads every element
of the product anyway, unless what follows could not have it. Products that nothing else goes with
are left to the library altogether.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.features.arguments import padded
from agent.features.lower import Handler, Lowering, Product, product_name
from agent.features.terms import FLOATS, Group, Term, Unsupported
from sandbox.graph import Arg, Node, Ref


def _spoken(low: Lowering, arg: Arg, inputs: list[str]) -> str:
    """Python for a tensor: a name, or a place among the `inputs`, where programs compute it."""
    if not isinstance(arg, Ref):
        raise Unsupported("no feature template for a product of a number")
    if arg.node in low.spoken:
        return low.spoken[arg.node]
    term, shape = low.term(arg), low.nodes[arg.node].meta.shape
    if low.sizes(term, len(shape)) != shape:
        raise Unsupported("no feature template for a product of a broadcast tensor")
    low.values[f"kept {arg.node}"] = low.build.kept(low.build.reshape(term, padded(term, shape)))
    inputs.append(arg.node)
    return f"{{{len(inputs) - 1}}}"


def _made(
    low: Lowering, node: Node, text: str, axes: list[Group], inputs: Sequence[str] = ()
) -> Term:
    """The product as an operand."""
    if node.meta.dtype not in FLOATS:
        raise Unsupported(f"no feature template for a product of {node.meta.dtype}")
    others = [product.name for product in low.products]
    after = tuple(name for name in others if re.search(rf"\b{name}\b", text))
    low.products.append(Product(product_name(node), text, tuple(inputs), after))
    return low.build.make("load", (node.name,), "float", axes)


def _fresh(low: Lowering, node: Node, dim: int) -> Group:
    size = node.meta.shape[dim]
    return (low.build.atom(f"{product_name(node)}.shape[{dim}]", size),) if size != 1 else ()


def _mm(low: Lowering, node: Node) -> Term:
    (left, right), inputs = node.args[-2:], list[str]()
    text = f"torch.mm({_spoken(low, left, inputs)}, {_spoken(low, right, inputs)})"
    return _made(low, node, text, [low.term(left).axes[0], low.term(right).axes[1]], inputs)


def _addmm(low: Lowering, node: Node) -> Term:
    if any(low.arg(node, 9, name, 1) != 1 for name in ("alpha", "beta")):
        raise Unsupported("no feature template for aten.addmm with factors")
    return low.build.point("add", _mm(low, node), low.term(node.args[0]))


def _bmm(low: Lowering, node: Node) -> Term:
    (left, right), inputs = node.args[:2], list[str]()
    text = f"torch.bmm({_spoken(low, left, inputs)}, {_spoken(low, right, inputs)})"
    a, b = low.term(left).axes, low.term(right).axes
    return _made(low, node, text, [low.build.unify(a[0], b[0]), a[1], b[2]], inputs)


def _convolution(low: Lowering, node: Node) -> Term:
    (x, weight, bias, *settings), inputs = node.args, list[str]()
    inside = _spoken(low, bias, inputs) if low.library_bias and bias is not None else None
    given = f"{_spoken(low, x, inputs)}, {_spoken(low, weight, inputs)}"
    text = f"torch.convolution({given}, {inside}, "
    text += ", ".join(repr(list(s) if isinstance(s, tuple) else s) for s in settings) + ")"
    rest = [_fresh(low, node, dim) for dim in range(1, len(node.meta.shape))]
    term = _made(low, node, text, [low.term(x).axes[0], *rest], inputs)
    if bias is None or inside is not None:
        low.spoken[node.name] = product_name(node)
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
