"""A module's forward pass as a graph, and the same graph decomposed to core ATen with its origins.

The exported graph is what runs: composite operators stay whole. The decomposed one is what is
compared: two spellings of one computation become the same operators. Not covered: modules that
torch.export refuses, that write to their inputs or buffers, or that write in place into views.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

NOTHING = {"alias", "lift_fresh_copy", "clone", "contiguous"}
"""Core ATen operators that change no value. Nor does `detach`, but it ends the gradient."""
MAYBE_NOTHING = {"_to_copy", "view", "expand", "permute", "_unsafe_view", "slice"}
"""Likewise where dtype and shape (and, for a permutation, the order) stay."""


class Untraceable(Exception):
    """The module has no graph that could be changed; the message says why."""


@dataclass(frozen=True)
class Traced:
    """One module at one set of inputs."""

    graph: fx.Graph
    """Placeholders are parameters, buffers and constants, then the flattened inputs."""
    state: tuple[str | torch.Tensor, ...]
    """Of the first placeholders: dotted names in the module, or the constants themselves."""
    out_spec: TreeSpec

    @property
    def calls(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "call_function"]


@dataclass
class Decomposed:
    """Core ATen operators of a graph."""

    graph: fx.Graph
    origins: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """The exported node that each decomposed one comes from."""
    results: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """The first exported node whose whole result a decomposed one is."""
    made: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    """By exported node."""


def trace(
    module: torch.nn.Module,
    arguments: Sequence[Any],
    named: dict[str, Any],
    gradients: bool = True,
) -> Traced:
    """The module's graph in eval mode, as it is called with gradients or without them; where a part
    of it changes that, the graph says so. Raises Untraceable.
    """
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
            program = torch.export.export(module, tuple(arguments), named, strict=False)
    except Exception as error:  # whatever the module's own code raises
        lines = str(error).strip().splitlines() or [""]
        raise Untraceable(f"torch.export: {type(error).__name__}: {lines[0][:200]}") from error
    _refuse_inference(program.graph_module.graph)
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise Untraceable("it changes its inputs or buffers")
    _, spec = tree_flatten((tuple(arguments), named))
    if program.call_spec.in_spec != spec:
        raise Untraceable("its keyword arguments come in another order than forward's")
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = {
        place: program.constants[name]
        for place, name in signature.inputs_to_lifted_tensor_constants.items()
    }
    graph, state = program.graph_module.graph, []
    for node in (n for n in graph.nodes if n.op == "placeholder"):
        if node.name in names:
            state.append(names[node.name])
        elif node.name in constants:
            state.append(constants[node.name])
    inputs = sum(n.op == "placeholder" for n in graph.nodes) - len(state)
    if inputs != spec.num_leaves:
        raise Untraceable("its graph takes more than tensors and numbers")
    _thread_writes(graph)
    return Traced(graph, tuple(state), program.call_spec.out_spec)


def _refuse_inference(graph: fx.Graph) -> None:
    """Raises Untraceable where a part works in inference mode, which no graph says."""
    values = {n: n.meta.get("val") for n in graph.nodes}
    made = {n for n, v in values.items() if isinstance(v, torch.Tensor) and v.is_inference()}
    if made and all(n.op == "call_function" for n in made):  # a view of such an input is one too
        raise Untraceable("a part of it works in inference mode")


def _thread_writes(graph: fx.Graph) -> None:
    """Let what reads a tensor after it was written in place use the write's result instead."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in [n for n in graph.nodes if writes(n)]:
        target = node.args[0]
        if not isinstance(target, fx.Node) or target.op != "call_function":
            raise Untraceable("it changes its inputs or buffers")
        if _is_view(target) or any(_is_view(u) for u in target.users if u is not node):
            raise Untraceable(f"it writes into a view ({node.target})")
        for user in [u for u in target.users if place[u] > place[node]]:
            user.replace_input_with(target, node)


def writes(node: fx.Node) -> bool:
    """Whether it changes an argument in place."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and _is_view(source)
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return bool(node.op == "call_function")
    if schema.is_mutable:  # it returns what it wrote to, which is no view by then
        return False
    # Dropout returns its argument in eval mode, and its schema does not say so.
    aliases = any(r.alias_info is not None for r in schema.returns)
    return bool("dropout" in str(node.target) or aliases)


# --- decomposition --------------------------------------------------------------------------------


def decompose(traced: Traced) -> Decomposed:
    """Raises Untraceable where an operator has no meaning without values."""
    found = Decomposed(fx.Graph())
    graph = traced.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("val") for node in places]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    told: list[fx.Node] = []
    emitted: dict[fx.Node, list[fx.Node]] = {}

    def run(*given: torch.Tensor) -> list[torch.Tensor]:
        walk = _Walk(graph, emitted)
        feed = iter(given)
        arguments = [next(feed) if isinstance(v, torch.Tensor) else v for v in values]
        walk.run(*arguments, enable_io_processing=False)
        kept = [(n, v) for n, v in walk.env.items() if isinstance(v, torch.Tensor)]
        told.extend(n for n, _ in kept)
        return [v for _, v in kept]

    found.graph = _core(run, tensors)
    [output] = [n for n in found.graph.nodes if n.op == "output"]
    for source, node in zip(told, output.args[0], strict=True):
        if isinstance(node, fx.Node):
            found.results.setdefault(node, source)
    found.made = emitted
    found.origins = {node: source for source, nodes in emitted.items() for node in nodes}
    return found


def decompose_call(call: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> fx.Graph:
    """The core ATen graph of a function of tensors (fake ones), its outputs in a list."""
    return _core(lambda *given: tree_leaves(call(*given)), tensors)


def fake(parts: Sequence[tuple[torch.dtype, Sequence[int], Sequence[int]]], device: str) -> Any:
    """(the mode, fake tensors in it), from dtypes, shapes and strides."""
    mode = FakeTensorMode()
    with mode:
        return mode, [
            torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=device)
            for dtype, shape, stride in parts
        ]


def _core(call: Callable[..., list[torch.Tensor]], tensors: Sequence[torch.Tensor]) -> fx.Graph:
    try:
        with torch.no_grad():
            traced = make_fx(call, decomposition_table=_decompositions())(*tensors)
    except Untraceable:
        raise
    except Exception as error:  # whatever an operator's decomposition raises
        lines = str(error).strip().splitlines() or [""]
        raise Untraceable(f"{type(error).__name__}: {lines[0][:200]}") from error
    graph: fx.Graph = traced.graph
    return graph


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """To core ATen, collected once: torch's own table does so for every trace, for longer than a
    small one takes. Composite operators of others, registered later, torch takes apart itself.
    """
    table = dict(core_aten_decompositions())
    table.pop(torch.ops.aten.detach.default, None)  # else an alias, which ends no gradient
    return table


class _Walk(fx.Interpreter):  # type: ignore[misc]
    """Runs a graph under make_fx and notes which nodes each of its nodes emits."""

    def __init__(self, graph: fx.Graph, emitted: dict[fx.Node, list[fx.Node]]) -> None:
        super().__init__(torch.nn.Module(), garbage_collect_values=False, graph=graph)
        self.emitted = emitted

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        into: fx.Graph = get_proxy_mode().tracer.graph
        before = len(into.nodes)
        arguments, named = self.fetch_args_kwargs_from_env(n)
        result = (
            functional(n.target)(*arguments, **named)
            if writes(n)
            else n.target(*arguments, **named)
        )
        emitted = islice(reversed(into.nodes), len(into.nodes) - before)
        self.emitted[n] = list(emitted)[::-1]
        return result


def functional(target: Any) -> Any:
    """The operator without its write: `aten.relu` for `aten.relu_`; raises Untraceable."""
    name = target._schema.name.rpartition("::")[2]
    plain = getattr(torch.ops.aten, name.removesuffix("_"), None)
    found = getattr(plain, target._overloadname, None)
    if not name.endswith("_") or found is None or found._schema.is_mutable:
        raise Untraceable(f"{target} writes to its arguments")
    return found


# --- what a decomposed node says ------------------------------------------------------------------


def base_name(node: fx.Node) -> str:
    """`add` of aten.add.Tensor; `getitem`."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name).rpartition("::")[2]
    return getattr(node.target, "__name__", str(node.target))


def arguments_of(node: fx.Node) -> list[Any]:
    """Every argument in the schema's order, defaults filled in."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return [*node.args, *node.kwargs.values()]
    found = list(node.args)
    for argument in schema.arguments[len(found) :]:
        default = argument.default_value if argument.has_default_value() else None
        found.append(node.kwargs.get(argument.name, default))
    return found


def plain(node: fx.Node) -> fx.Node:
    """The node whose values these are: operators that change none are skipped."""
    while _changes_nothing(node):
        node = node.args[0]
    return node


def _changes_nothing(node: fx.Node) -> bool:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return False
    name = base_name(node)
    if name in NOTHING:
        return True
    if name not in MAYBE_NOTHING:
        return False
    here, before = node.meta.get("val"), node.args[0].meta.get("val")
    if not isinstance(here, torch.Tensor) or not isinstance(before, torch.Tensor):
        return False
    if name == "permute" and [d % here.ndim for d in node.args[1]] != list(range(here.ndim)):
        return False
    same_device = here.device == before.device
    return bool(here.dtype == before.dtype and here.shape == before.shape and same_device)
