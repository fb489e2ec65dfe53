"""Which parts of a traced model could become one kernel.

- a *fused* region: pointwise operations, normalisations, softmax and reductions that feed each
  other, with nothing else between them; regions of this kind never overlap;
- an *operator*: a matmul, convolution, attention or whatever else, by itself;
- an *epilogue*: a matmul or convolution with the few pointwise operations after it. It overlaps
  the other two kinds: a choice, not an addition.

Every region is convex: no path leaves it and comes back.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import fx

from agent.export.runtime.graphs import Traced, Untraceable, base_name, functional, writes

LARGEST = 24
"""Computing operations of a fused region: beyond it no kernel is one kernel."""
LONGEST_EPILOGUE = 6
DENSE = {
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d", "conv3d",
    "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "bilinear",
    "scaled_dot_product_attention",
}  # fmt: skip
NORMS = {
    "layer_norm", "group_norm", "rms_norm", "instance_norm", "softmax", "log_softmax", "_softmax",
    "_log_softmax", "native_layer_norm", "native_group_norm", "logsumexp", "_fused_rms_norm",
}  # fmt: skip
REDUCTIONS = {
    "sum", "mean", "var", "std", "amax", "amin", "norm", "linalg_vector_norm", "var_mean",
    "nll_loss", "mse_loss", "cross_entropy_loss",
}  # fmt: skip
POINTWISE = {
    "to", "_to_copy", "type_as", "where", "masked_fill", "leaky_relu", "elu", "gelu", "silu",
    "mish", "prelu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "softplus", "glu", "square",
    "softsign", "logsigmoid", "log_sigmoid", "selu", "celu", "lerp", "addcmul", "addcdiv",
}  # fmt: skip
"""Beside those that torch tags so."""
IDLE = {"dropout", "feature_dropout", "alpha_dropout", "clone", "contiguous", "detach", "alias",
        "lift_fresh_copy", "identity"}  # fmt: skip
"""In eval mode they compute nothing."""


class Kind(StrEnum):
    """What a node is to a region."""

    POINTWISE = "pointwise"
    NORM = "norm"
    REDUCTION = "reduction"
    VIEW = "view"
    DENSE = "dense"
    OTHER = "other"

    @property
    def fusible(self) -> bool:
        return self in (Kind.POINTWISE, Kind.NORM, Kind.REDUCTION)


class Form(StrEnum):
    """What a region is."""

    FUSED = "fused"
    OPERATOR = "operator"
    EPILOGUE = "epilogue"


@dataclass(frozen=True)
class Region:
    """Nodes of one traced module, in order."""

    form: Form
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    """What comes in from outside, parameters among it, in the order of first use."""
    outputs: tuple[fx.Node, ...]

    @property
    def name(self) -> str:
        """From its computing operations: `add_layer_norm`."""
        words = [base_name(n).strip("_") for n in self.nodes if kind_of(n) is not Kind.VIEW]
        kept = list(dict.fromkeys(words))
        if len(kept) > 4:
            kept = [*kept[:3], kept[-1]]
        return "_".join(kept)


def kind_of(node: fx.Node) -> Kind:
    """Of a call_function node."""
    name = base_name(node).removesuffix("_")
    if node.target is operator.getitem:
        return Kind.VIEW
    if name in DENSE:
        return Kind.DENSE
    if name in NORMS or (name == "batch_norm" and node.args[5] is False):
        return Kind.NORM
    if name in REDUCTIONS:
        return Kind.REDUCTION
    if name in IDLE or _views(node) or _keeps(node):
        return Kind.VIEW
    if name in POINTWISE or torch.Tag.pointwise in _tags(node):
        return Kind.POINTWISE
    return Kind.OTHER


def regions(traced: Traced) -> list[Region]:
    """Every region of the module, unranked."""
    graph = _Reach(traced)
    groups = _grouped(graph)
    found = [graph.region(Form.FUSED, group) for group in groups]
    for node in graph.nodes:
        if kind_of(node) in (Kind.DENSE, Kind.OTHER):
            found.append(graph.region(Form.OPERATOR, {node}))
            after = _epilogue(graph, node) if kind_of(node) is Kind.DENSE else set()
            if after:
                found.append(graph.region(Form.EPILOGUE, {node} | after))
    return [region for region in found if region is not None]


def _tags(node: fx.Node) -> Sequence[torch.Tag]:
    """Of the operator without its write: torch tags those alone."""
    try:
        target = functional(node.target) if writes(node) else node.target
    except Untraceable:
        return ()
    return getattr(target, "tags", ())


def _views(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable:
        return False
    # `to` and `contiguous` may return their argument: told by what they do here.
    return base_name(node) not in ("to", "type_as") and any(
        r.alias_info is not None for r in schema.returns
    )


def _keeps(node: fx.Node) -> bool:
    """A conversion to the dtype that the tensor has."""
    if base_name(node) not in ("to", "type_as", "_to_copy"):
        return False
    source = node.args[0]
    before = source.meta.get("val") if isinstance(source, fx.Node) else None
    here = node.meta.get("val")
    return isinstance(before, torch.Tensor) and before.dtype == getattr(here, "dtype", None)


def _grouped(graph: _Reach) -> list[set[fx.Node]]:
    """Fusible nodes joined with the fusible producers of their arguments, as far as convexity and
    size allow.
    """
    group_of: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        if not kind_of(node).fusible:
            continue
        mine = {node}
        for source in graph.producers(node):
            theirs = group_of.get(source)
            if theirs is None or source in mine:
                continue
            joined = mine | theirs
            if len(joined) <= LARGEST and graph.closed(joined) is not None:
                mine = joined
        for member in mine:
            group_of[member] = mine
    distinct = {id(group): group for group in group_of.values()}
    return list(distinct.values())


def _epilogue(graph: _Reach, anchor: fx.Node) -> set[fx.Node]:
    """Pointwise operations that can follow it at once."""
    held = {anchor}
    for node in graph.nodes[graph.place[anchor] + 1 :]:
        name = base_name(node).removesuffix("_")
        simple = kind_of(node) is Kind.POINTWISE or name == "batch_norm"
        if not simple or not set(graph.producers(node)) & held:
            continue
        if graph.closed(held | {node}) is None:
            continue
        held.add(node)
        if len(held) > LONGEST_EPILOGUE:
            break
    return held - {anchor}


class _Reach:
    """Ancestors and descendants of every call as bit sets, for questions of convexity."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.nodes: list[fx.Node] = traced.calls
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.before = [0] * len(self.nodes)
        self.after = [0] * len(self.nodes)
        state = [n for n in traced.graph.nodes if n.op == "placeholder"][: len(traced.state)]
        self.fixed: set[fx.Node] = set(state)
        """Parameters, buffers, and what is made of them or of nothing without computing."""
        for i, node in enumerate(self.nodes):
            for source in node.all_input_nodes:
                if source in self.place:
                    j = self.place[source]
                    self.before[i] |= self.before[j] | 1 << j
            view = kind_of(node) is Kind.VIEW
            if all(s in self.fixed for s in node.all_input_nodes) and (
                view or not node.all_input_nodes
            ):
                self.fixed.add(node)
        for i in reversed(range(len(self.nodes))):
            for user in self.nodes[i].users:
                if user in self.place:
                    j = self.place[user]
                    self.after[i] |= self.after[j] | 1 << j

    def producers(self, node: fx.Node) -> Iterator[fx.Node]:
        """Computing nodes of its arguments, looked for through views."""
        for source in node.all_input_nodes:
            if source not in self.place:
                continue
            if kind_of(source) is Kind.VIEW:
                yield from self.producers(source)
            else:
                yield source

    def closed(self, members: set[fx.Node]) -> set[fx.Node] | None:
        """With the views between its members; None where something else lies between them."""
        inside = after = before = 0
        for node in members:
            i = self.place[node]
            inside |= 1 << i
            after |= self.after[i]
            before |= self.before[i]
        between = after & before & ~inside
        found = set(members)
        while between:
            bit = between & -between
            node = self.nodes[bit.bit_length() - 1]
            if kind_of(node) is not Kind.VIEW:
                return None
            found.add(node)
            between ^= bit
        return found

    def region(self, form: Form, members: set[fx.Node]) -> Region | None:
        """The region of these nodes; None where it has no tensor result of its own."""
        closed = self.closed(members)
        if closed is None:
            return None
        pending = list(closed)
        while pending:  # take in views of parameters, and constants
            for source in pending.pop().all_input_nodes:
                if source in self.fixed and source in self.place and source not in closed:
                    closed.add(source)
                    pending.append(source)
        grown = True
        while grown:  # and the single results of operators that return several
            more = {
                u
                for n in closed
                if not isinstance(n.meta.get("val"), torch.Tensor)
                for u in n.users
                if u.target is operator.getitem and u not in closed
            }
            closed |= more
            grown = bool(more)
        order = tuple(n for n in self.nodes if n in closed)
        inputs: dict[fx.Node, None] = {}
        for node in order:
            inputs |= dict.fromkeys(s for s in node.all_input_nodes if s not in closed)
        outputs = tuple(
            n
            for n in order
            if n not in self.fixed
            and isinstance(n.meta.get("val"), torch.Tensor)
            and any(u not in closed for u in n.users)
        )
        return Region(form, order, tuple(inputs), outputs) if outputs else None


def computing(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Those that are more than a view."""
    return [n for n in nodes if kind_of(n) is not Kind.VIEW]
