"""How each ATen operator becomes terms. Products are in products.py, norms and softmax in norms.py;
not here: sorting.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from agent.features.arguments import dims_of, number, padded, shaped, source_of
from agent.features.lower import FIRST_ALONE, Handler, Lowered, Lowering
from agent.features.norms import batch_norm, group_norm, layer_norm, softmax
from agent.features.pools import POOLS
from agent.features.products import PRODUCTS, VIEWS, flattened
from agent.features.terms import Group, Term, Unsupported, kind_of
from sandbox.graph import Graph, Node, Ref


def lower(graph: Graph, *, library_bias: bool = False) -> Lowered:
    """The reference as terms; raises Unsupported. `library_bias`: of a convolution."""
    lowered = Lowering(graph, HANDLERS, library_bias=library_bias).run()
    operators = {n.op.rsplit(".", 1)[0] for n in graph.nodes if n.op.startswith("aten.")}
    if lowered.products and not operators - PRODUCTS.keys() - VIEWS.keys() - RESHAPING:
        raise Unsupported("no feature template for a product that nothing follows")
    return lowered


def _constant(low: Lowering, n: Node) -> Term:
    if not n.args:
        raise Unsupported("no feature template for a constant of several elements")
    return low.build.const(number(n.args[0]))


def _copied(low: Lowering, n: Node) -> Term:
    """In place; whoever reads the tensor afterwards reads this node."""
    term, target = low.term(n.args[1]), source_of(low, n).meta
    if kind_of(target.dtype) != term.kind or low.sizes(term, len(target.shape)) != target.shape:
        raise Unsupported("no feature template for a copy into another type or shape")
    return term


def _unary(op: str, kind: str | None = None) -> Handler:
    return lambda low, n: low.build.point(op, low.term(n.args[0]), kind=kind)


def _keep(op: str) -> Handler:
    """A unary operation that returns its argument's kind."""

    def handler(low: Lowering, n: Node) -> Term:
        term = low.term(n.args[0])
        return low.build.point(op, term, kind="float" if term.kind == "float" else "int")

    return handler


def _binary(op: str, kind: str | None = None) -> Handler:
    def handler(low: Lowering, n: Node) -> Term:
        a, b = low.term(n.args[0]), low.term(n.args[1])
        if low.arg(n, 2, "rounding_mode", None) is not None and op == "div":
            raise Unsupported("no feature template for aten.div with a rounding mode")
        alpha = low.arg(n, 2, "alpha", 1) if op in ("add", "sub", "rsub") else 1
        if alpha != 1:
            b = low.build.arithmetic("mul", b, number(alpha))
        if op == "rsub":
            return low.build.arithmetic("sub", b, a)
        return low.build.point(op, a, b, kind=kind) if kind else low.build.arithmetic(op, a, b)

    return handler


def _pow(low: Lowering, n: Node) -> Term:
    base, exponent = low.term(n.args[0]), n.args[1]
    if not isinstance(exponent, Ref) and base.kind == "float":
        special = {2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal", 1: "same"}
        if exponent in special:
            return low.build.point(special[number(exponent)], base)
    return low.build.point("pow", base, low.term(exponent))


def _clamp(low: Lowering, n: Node) -> Term:
    term = low.term(n.args[0])
    lower, upper = low.arg(n, 1, "min", None), low.arg(n, 2, "max", None)
    if lower is not None:
        term = low.build.arithmetic("maximum", term, low.term(lower))
    if upper is not None:
        term = low.build.arithmetic("minimum", term, low.term(upper))
    return term


def _hardtanh(low: Lowering, n: Node) -> Term:
    low_bound, high = (
        number(low.arg(n, 1, "min_val", -1.0)),
        number(low.arg(n, 2, "max_val", 1.0)),
    )
    term = low.build.arithmetic("maximum", low.term(n.args[0]), low_bound)
    return low.build.arithmetic("minimum", term, high)


def _leaky_relu(low: Lowering, n: Node) -> Term:
    x, slope = low.term(n.args[0]), float(number(low.arg(n, 1, "negative_slope", 0.01)))
    above = low.build.point("gt", x, 0.0, kind="bool")
    return low.build.point("where", above, x, low.build.point("mul", x, slope))


def _elu(low: Lowering, n: Node) -> Term:
    x = low.term(n.args[0])
    alpha, scale, inner = (
        float(number(low.arg(n, i, k, 1.0)))
        for i, k in ((1, "alpha"), (2, "scale"), (3, "input_scale"))
    )
    b = low.build
    below = b.point("mul", b.point("expm1", b.point("mul", x, inner)), alpha * scale)
    above = b.point("mul", x, scale) if scale != 1 else x
    return b.point("where", b.point("gt", x, 0.0, kind="bool"), above, below)


def _gelu(low: Lowering, n: Node) -> Term:
    tanh = low.arg(n, 1, "approximate", "none") == "tanh"
    return low.build.point("gelu_tanh" if tanh else "gelu", low.term(n.args[0]))


def _where(low: Lowering, n: Node) -> Term:
    c, a, b = (low.term(x) for x in n.args[:3])
    kind = "float" if "float" in (a.kind, b.kind) else a.kind
    return low.build.point("where", c, a, b, kind=kind)


def _cast(low: Lowering, n: Node) -> Term:
    term, dtype = low.term(n.args[0]), low.arg(n, 1, "dtype", None)
    if not isinstance(dtype, str) or kind_of(dtype) == term.kind:
        return low.build.point("same", term, kind=term.kind)
    return low.build.point(f"to_{kind_of(dtype)}", term, kind=kind_of(dtype))


def _full(low: Lowering, n: Node) -> Term:
    kind = kind_of(n.meta.dtype)
    name = n.op.split(".")[1]
    values = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}
    place = 0 if name == "scalar_tensor" else 1
    value = number(values[name] if name in values else n.args[place])
    return low.build.const({"float": float, "int": int, "bool": bool}[kind](value))


def _view(low: Lowering, n: Node) -> Term:
    """Same elements in the same order: regroup the atoms under the new sizes."""
    flattened(low, n)
    term, builder = low.term(n.args[0]), low.build
    atoms = [a for group in term.axes for a in group]
    axes: list[Group] = []
    for size in n.meta.shape:
        group: list[int] = []
        while atoms and builder.size(tuple(group)) < size:
            group.append(atoms.pop(0))
        if builder.size(tuple(group)) != size:
            raise Unsupported(
                "no feature template for a view that splits or broadcasts a dimension"
            )
        axes.append(tuple(group))
    return builder.reshape(term, axes)


def _unsqueeze(low: Lowering, n: Node) -> Term:
    term = low.term(n.args[0])
    place = int(number(n.args[1])) % len(n.meta.shape)
    source = source_of(low, n).name
    if source in low.spoken:
        low.spoken[n.name] = f"{low.spoken[source]}.unsqueeze({place})"
    return low.build.reshape(term, (*term.axes[:place], (), *term.axes[place:]))


def _squeeze(low: Lowering, n: Node) -> Term:
    term, shape = low.term(n.args[0]), source_of(low, n).meta.shape
    dims = dims_of(n.args[1]) if len(n.args) > 1 else list(range(len(shape)))
    gone = {d % len(shape) for d in dims if shape[d] == 1}
    return low.build.reshape(term, [g for i, g in enumerate(padded(term, shape)) if i not in gone])


def _expand(low: Lowering, n: Node) -> Term:
    flattened(low, n)
    term = low.term(n.args[0])
    return low.build.reshape(term, padded(term, n.meta.shape))


def _part(low: Lowering, term: Term, dim: int, start: int, size: int) -> Term:
    """One of n equal parts of a loaded tensor along one dimension."""
    builder, group = low.build, term.axes[dim]
    whole = builder.size(group)
    if (start, size) == (0, whole):
        return term
    plain = term.op == "load" and term.part is None and len(group) == 1
    if not plain or size < 1 or whole % size or start % size or size == 1:
        raise Unsupported("no feature template for slices other than equal parts of an input")
    count = whole // size
    atom = builder.atom(f"({builder.atoms[group[0]].expression} // {count})", size)
    axes = (*term.axes[:dim], (atom,), *term.axes[dim + 1 :])
    return builder.make("load", term.args, term.kind, axes, (start // size, count), atom)


def _slice(low: Lowering, n: Node) -> Term:
    dim, start, step = (int(number(low.arg(n, i, k, d) or 0)) for i, k, d in SLICE)
    if step != 1:
        raise Unsupported("no feature template for strided slices")
    term, shape = low.term(n.args[0]), source_of(low, n).meta.shape
    dim %= len(shape)
    start = min(max(start + shape[dim] if start < 0 else start, 0), shape[dim])
    return _part(low, term, dim, start, n.meta.shape[dim])


RESHAPING = {
    "aten.view", "aten._unsafe_view", "aten.reshape", "aten.unsqueeze", "aten.squeeze",
    "aten.expand", "aten.clone", "aten.alias", "aten.detach",
}  # fmt: skip
SLICE = ((1, "dim", 0), (2, "start", 0), (4, "step", 1))


def _getitem(low: Lowering, n: Node) -> Term:
    source, place = source_of(low, n), int(number(n.args[1]))
    if source.op.startswith("aten.split_with_sizes"):
        shape = low.nodes[source.args[0].node].meta.shape if isinstance(source.args[0], Ref) else ()
        dim = int(number(low.arg(source, 2, "dim", 0))) % len(shape)
        sizes = dims_of(source.args[1])
        return _part(low, low.term(source.args[0]), dim, sum(sizes[:place]), sizes[place])
    if source.op.startswith("aten.var_mean"):
        return (_var(low, source), _mean(low, source, place=None))[place]
    if source.op.rsplit(".", 1)[0] in FIRST_ALONE and not place:
        return low.values[source.name]
    raise Unsupported(f"no feature template for output {place} of {source.op.rsplit('.', 1)[0]}")


def _sum(low: Lowering, n: Node) -> Term:
    dims, keep = dims_of(low.arg(n, 1, "dim", None)), bool(low.arg(n, 2, "keepdim", False))
    return low.build.reduce("sum", shaped(low, n), dims, keep)


def _mean(low: Lowering, n: Node, place: int | None = 2) -> Term:
    dims = dims_of(low.arg(n, 1, "dim", None))
    keep = bool(low.arg(n, place, "keepdim", False) if place else n.kwargs.get("keepdim", False))
    return low.build.mean(shaped(low, n), dims, keep)


def _var(low: Lowering, n: Node) -> Term:
    dims, keep = dims_of(low.arg(n, 1, "dim", None)), bool(n.kwargs.get("keepdim", False))
    correction = n.kwargs.get("correction", 1)
    value = 1.0 if correction is None else float(number(correction))
    return low.build.variance(shaped(low, n), dims, keep, value)


def _extreme(op: str) -> Handler:
    def handler(low: Lowering, n: Node) -> Term:
        if low.term(n.args[0]).kind != "float":
            raise Unsupported(f"no feature template for {n.op} of integers")
        dims, keep = dims_of(low.arg(n, 1, "dim", None)), bool(low.arg(n, 2, "keepdim", False))
        return low.build.reduce(op, shaped(low, n), dims, keep)

    return handler


def _cumsum(low: Lowering, n: Node) -> Term:
    x, dim = shaped(low, n), int(number(n.args[1]))
    dtype = low.arg(n, 2, "dtype", None)
    if isinstance(dtype, str) and kind_of(dtype) != x.kind:
        raise Unsupported("no feature template for aten.cumsum into another type")
    along = x.axes[dim % max(len(x.axes), 1)] if x.axes else ()
    kind = "float" if x.kind == "float" else "int"
    if not along:
        return low.build.point("same", x, kind=kind)
    return low.build.make("scan.sum", (x, *(f"@{a}" for a in along)), kind, x.axes)


def _vector_norm(low: Lowering, n: Node) -> Term:
    order, b, term = low.arg(n, 1, "ord", 2), low.build, shaped(low, n)
    dims, keep = dims_of(low.arg(n, 2, "dim", None)), bool(low.arg(n, 3, "keepdim", False))
    if order == 2:
        return b.point("sqrt", b.reduce("sum", b.point("square", term), dims, keep))
    if order == 1:
        return b.reduce("sum", b.point("abs", term), dims, keep)
    if order == math.inf:
        return b.reduce("max", b.point("abs", term), dims, keep)
    raise Unsupported(f"no feature template for the {order}-norm")


def _gather(low: Lowering, n: Node) -> Term:
    """One element of each row, as in the negative log likelihood."""
    x, dim, index = shaped(low, n), int(number(n.args[1])), low.term(n.args[2])
    dim %= max(len(x.axes), 1)
    if index.kind != "int" or index.axes[dim : dim + 1] != ((),):
        raise Unsupported("no feature template for aten.gather of several elements of a row")
    rest = [() if i == dim else g for i, g in enumerate(x.axes)]
    axes = [low.build.unify(g, h) for g, h in zip(rest, index.axes, strict=True)]
    return low.build.make("pick", (x, index, *(f"@{a}" for a in x.axes[dim])), x.kind, axes)


def _nothing(low: Lowering, n: Node) -> None:
    """An operator with several outputs, lowered where each is used."""


def _table() -> dict[str, Handler]:
    table: dict[str, Handler] = {}
    for op in (
        "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh",
        "erf", "sigmoid", "sign", "floor", "ceil", "silu",
    ):  # fmt: skip
        table[op] = _unary(op)
    for op in ("neg", "abs", "relu"):
        table[op] = _keep(op)
    for op in ("isnan", "isinf", "logical_not", "bitwise_not"):
        table[op] = _unary(op, "bool")
    for op in ("add", "sub", "rsub", "mul", "div", "maximum", "minimum"):
        table[op] = _binary(op)
    for op in ("lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or"):
        table[op] = _binary(op, "bool")
    singles: dict[str, Callable[[Lowering, Node], Term | None]] = {
        "pow": _pow, "clamp": _clamp, "hardtanh": _hardtanh, "leaky_relu": _leaky_relu,
        "elu": _elu, "gelu": _gelu, "where": _where, "_to_copy": _cast, "clone": _cast,
        "unsqueeze": _unsqueeze, "squeeze": _squeeze, "expand": _expand, "slice": _slice,
        "split_with_sizes": _nothing, "var_mean": _nothing, "sum": _sum, "mean": _mean,
        "var": _var, "linalg_vector_norm": _vector_norm, "native_layer_norm": layer_norm,
        "_native_batch_norm_legit_no_training": batch_norm, "native_batch_norm": batch_norm,
        "native_group_norm": group_norm,
        "copy": _copied, "gather": _gather, "cumsum": _cumsum,
    }  # fmt: skip
    table.update(singles)
    table["clamp_min"] = table["maximum"]
    table["clamp_max"] = table["minimum"]
    table.update(dict.fromkeys(("alias", "detach", "lift_fresh_copy"), _unary("same")))
    table.update(dict.fromkeys(("view", "_unsafe_view", "reshape"), _view))
    for name in ("full", "scalar_tensor", "full_like", "zeros", "zeros_like", "ones", "ones_like"):
        table[name] = _full
    table.update({"amax": _extreme("max"), "amin": _extreme("min")})
    table.update({"max": _extreme("max"), "min": _extreme("min")})
    table.update({"_softmax": softmax, "_log_softmax": softmax})
    return (
        {**{f"aten.{k}": v for k, v in table.items()}, "getitem": _getitem, "constant": _constant}
        | POOLS
        | PRODUCTS
        | VIEWS
    )


HANDLERS = _table()
