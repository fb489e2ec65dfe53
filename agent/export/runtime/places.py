"""Where a library's operators fit in a traced module, and the graph with the operators in place.

An operator fits where its reference's core ATen graph occurs with a signature that a kernel won on
this machine, covering whole operations of the module, none of whose intermediate results is used
elsewhere. Everything else is told with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from agent.export.runtime import graphs, matching, records, signature
from agent.export.runtime.graphs import Decomposed, Traced, Untraceable
from agent.export.runtime.machine import machine
from agent.export.runtime.operators import Custom
from agent.export.runtime.switches import Against

FITS = "replaced"


@dataclass(frozen=True)
class Place:
    """One occurrence of an operator's graph, and what became of it."""

    operator: str
    module: str
    """Dotted name of the innermost module that holds all of it; empty for the model itself."""
    nodes: tuple[str, ...]
    """Of the exported graph."""
    state: str
    """`replaced`, or why it is not."""
    kernel: str | None = None

    @property
    def replaced(self) -> bool:
        return self.state == FITS


@dataclass(frozen=True)
class Variant:
    """An operator's graph at one measured signature."""

    custom: Custom
    row: records.Row
    device: str
    init: str
    parts: tuple[Any, ...]
    """The dispatch key's parts: (dtype, shape, stride) of tensors, (type, value) of numbers."""
    pattern: matching.Pattern

    @property
    def name(self) -> str:
        return self.custom.operator.name


@dataclass(frozen=True)
class Fit:
    """What takes the place of what."""

    variant: Variant
    replaces: tuple[fx.Node, ...]
    arguments: tuple[fx.Node, ...]
    """Exported nodes that are passed, in the order of the pattern's inputs."""
    results: tuple[fx.Node, ...]
    before: fx.Node


class Unfit(Exception):
    """An occurrence that cannot be replaced; the message says why."""


def variants(custom: Custom) -> tuple[list[Variant], str]:
    """At every signature with a kernel on this machine; where there is none, why."""
    operator = custom.operator
    found, reason = [], ""
    if not custom.dispatch.on:
        return [], "its kernels are switched off"
    for row in operator.rows:
        device, init, *parts = signature.parse(row.signature)
        kind = str(device)
        if kind == "cuda" and not torch.cuda.is_available():
            reason = reason or "measured on another machine"
        elif row.machine != machine(kind):
            reason = reason or "measured on another machine; revalidate the library here"
        elif not custom.dispatch.uses(row):
            variable = custom.dispatch.variable
            remedy = (
                f" ({variable}={Against.EAGER} runs it)" if row.beats_eager and variable else ""
            )
            reason = reason or f"its kernel is not used: {row.state}{remedy}"
        else:
            try:
                found.append(_variant(custom, row, kind, str(init), parts))
            except Untraceable as error:
                reason = f"its reference has no graph to look for: {error}"
    return found, "" if found else reason or "nothing was measured"


def _variant(
    custom: Custom, row: records.Row, device: str, init: str, parts: Sequence[Any]
) -> Variant:
    tensors = [part for part in parts if isinstance(part[0], torch.dtype)]
    mode, fakes = graphs.fake(tensors, device)

    def call(*given: torch.Tensor) -> Any:
        feed = iter(given)
        values = [next(feed) if isinstance(p[0], torch.dtype) else p[1] for p in parts]
        return custom.refer(values, init)

    with mode:
        pattern = matching.Pattern.of(graphs.decompose_call(call, fakes))
    return Variant(custom, row, device, init, tuple(parts), pattern)


def find(
    traced: Traced, decomposed: Decomposed, given: Iterable[Variant]
) -> tuple[list[Fit], list[Place]]:
    """Disjoint fits, the largest first, and every place with its reason."""
    fits: list[Fit] = []
    told: list[Place] = []
    for variant in given:
        exact = set()
        for binding in matching.occurrences(variant.pattern, decomposed.graph):
            exact.add(_root(variant, binding))
            try:
                fits.append(_fit(variant, binding, traced, decomposed))
            except Unfit as error:
                told.append(_place(variant, _covered(binding, decomposed), str(error)))
        for binding in matching.occurrences(variant.pattern, decomposed.graph, loose=True):
            if _root(variant, binding) not in exact:
                covered = _covered(binding, decomposed)
                told.append(_place(variant, covered, _why(variant, binding)))
    chosen: list[Fit] = []
    taken: set[fx.Node] = set()
    for fit in sorted(fits, key=lambda f: -len(f.replaces)):
        if taken & set(fit.replaces):
            told.append(_place(fit.variant, fit.replaces, "a larger operator is there"))
            continue
        chosen.append(fit)
        taken |= set(fit.replaces)
        told.append(_place(fit.variant, fit.replaces, FITS))
    return chosen, _distinct(told)


def rewrite(traced: Traced, fits: Sequence[Fit]) -> fx.GraphModule:
    """A copy of the graph with the operators in place; raises Unfit where they get in each other's
    way.
    """
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    output = graph.graph_copy(traced.graph, copied)
    places = dict(copied)
    new = graph.output(output)
    for fit in fits:
        variant = fit.variant
        with graph.inserting_before(places.get(fit.before, new)):
            tensors = iter(copied[a] for a in fit.arguments)
            values = [
                next(tensors) if isinstance(part[0], torch.dtype) else part[1]
                for part in variant.parts
            ]
            call = graph.call_function(variant.custom.call, (*values, variant.init))
            results = (
                [call]
                if variant.custom.operator.outputs is None
                else [graph.call_function(_item, (call, i)) for i in range(len(fit.results))]
            )
        for result, value in zip(fit.results, results, strict=True):
            copied[result].replace_all_uses_with(value)
            # A later fit may take this result as its argument.
            copied[result] = value
    _sweep(graph)
    try:
        graph.lint()
    except RuntimeError as error:
        raise Unfit("other operations stand between its parts") from error
    module = fx.GraphModule({}, graph)
    if any(not result.meta["val"].is_contiguous() for fit in fits for result in fit.results):
        _check_strides(traced, module)
    return module


def _check_strides(traced: Traced, module: fx.GraphModule) -> None:
    """Operators return contiguous tensors: raises Unfit where a view cannot be had of one."""
    values = [n.meta.get("val") for n in traced.graph.nodes if n.op == "placeholder"]
    [mode, *_] = [v.fake_mode for v in values if isinstance(v, FakeTensor)]
    try:
        with mode, torch.no_grad():
            module(*values)
    except Exception as error:  # whatever an operator's meta function raises
        raise Unfit("what reads its result depends on its strides") from error


def _item(values: Sequence[torch.Tensor], place: int) -> torch.Tensor:
    return values[place]


def _sweep(graph: fx.Graph) -> None:
    """Erase what nothing uses any more, writes to what nobody reads included."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)


# --- one occurrence -------------------------------------------------------------------------------


def _covered(binding: matching.Binding, decomposed: Decomposed) -> tuple[fx.Node, ...]:
    """Exported nodes that the occurrence takes operators from, in order."""
    matched = [t for p, t in binding.items() if p.op != "placeholder"]
    origins = {decomposed.origins[t] for t in matched}
    return tuple(n for n in decomposed.made if n in origins)


def _fit(
    variant: Variant, binding: matching.Binding, traced: Traced, decomposed: Decomposed
) -> Fit:
    """Raises Unfit."""
    matched = {t for p, t in binding.items() if p.op != "placeholder"}
    covered = set(_covered(binding, decomposed))
    for source in covered:
        if any(_extra(node, matched) for node in decomposed.made[source]):
            raise Unfit(f"{source.name} does more than the operator")
    results = tuple(_result(binding[o], decomposed, covered) for o in variant.pattern.outputs)
    arguments = tuple(_argument(binding[i], decomposed) for i in variant.pattern.inputs)
    for argument in arguments:
        # The backward pass reads the arguments again, where the model's own may not.
        if any(graphs.writes(u) and u not in covered for u in argument.users):
            raise Unfit(f"{argument.name}, an argument, is written in place afterwards")
    covered = _with_transparent(covered, decomposed)
    for node in covered - set(results):
        if any(u not in covered and _counts(u) for u in node.users):
            raise Unfit(f"{node.name}, an intermediate result, is used elsewhere")
    _check_signature(variant, arguments)
    before = _insertion(traced, covered, arguments, results)
    order = tuple(n for n in traced.graph.nodes if n in covered)
    return Fit(variant, order, arguments, results, before)


def _extra(node: fx.Node, matched: set[fx.Node]) -> bool:
    """Whether it computes something for somebody: decompositions leave unused operators behind."""
    if node in matched or graphs.plain(node) is not node:
        return False
    return any(u.op == "output" or u in matched or _extra(u, matched) for u in node.users)


def _result(node: fx.Node, decomposed: Decomposed, covered: set[fx.Node]) -> fx.Node:
    """The first exported node of those that returns this value."""
    for value, source in decomposed.results.items():
        if graphs.plain(value) is node and source in covered:
            if any("as_strided" in str(u.target) for u in source.users):
                raise Unfit("what reads its result depends on its strides")
            return source
    raise Unfit("its result is inside a larger operation")


def _argument(node: fx.Node, decomposed: Decomposed) -> fx.Node:
    found = decomposed.results.get(node)
    if found is None:
        raise Unfit("an argument is inside a larger operation")
    return found


def _counts(user: fx.Node) -> bool:
    """Whether it makes a difference that this node uses something."""
    return user.op == "output" or bool(user.users) or graphs.writes(user)


def _with_transparent(covered: set[fx.Node], decomposed: Decomposed) -> set[fx.Node]:
    """And what stands between them but computes nothing: getitem, dropout in eval mode."""
    grown = True
    while grown:
        grown = False
        for node in list(covered):
            for user in node.users:
                idle = user.op == "call_function" and user not in covered
                if idle and not _computes(user, decomposed) and set(user.users) <= covered:
                    covered = covered | {user}
                    grown = True
    return covered


def _computes(node: fx.Node, decomposed: Decomposed) -> bool:
    return any(graphs.plain(n) is n for n in decomposed.made.get(node, []))


def _check_signature(variant: Variant, arguments: Sequence[fx.Node]) -> None:
    measured = [p for p in variant.parts if isinstance(p[0], torch.dtype)]
    for part, node in zip(measured, arguments, strict=True):
        here = node.meta["val"]
        if here.device.type != variant.device:
            raise Unfit(f"measured on {variant.device}, here on {here.device.type}")
        if (here.dtype, tuple(here.shape), tuple(here.stride())) != tuple(part):
            raise Unfit(_differs(part, here))


def _differs(part: Sequence[Any], here: torch.Tensor) -> str:
    return f"measured {_word(*part)}, here {_word(here.dtype, here.shape, here.stride())}"


def _word(dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> str:
    return signature.readable([torch.empty_strided(shape, stride, dtype=dtype, device="meta")])


def _why(variant: Variant, binding: matching.Binding) -> str:
    """Why a place of the right structure is not the operator's: the first argument that differs."""
    measured = [p for p in variant.parts if isinstance(p[0], torch.dtype)]
    for part, node in zip(measured, variant.pattern.inputs, strict=True):
        here = binding[node].meta["val"]
        if (here.dtype, tuple(here.shape)) != (part[0], tuple(part[1])):
            return _differs(part, here)
    return "its sizes differ from those that were measured"


def _insertion(
    traced: Traced,
    covered: set[fx.Node],
    arguments: Sequence[fx.Node],
    results: Sequence[fx.Node],
) -> fx.Node:
    """The node to stand before: after all arguments, before any use of a result."""
    order = list(traced.graph.nodes)
    place = {node: i for i, node in enumerate(order)}
    uses = [place[u] for r in results for u in r.users if u not in covered]
    last = max(place[n] for n in covered)
    at = min([last + 1, *uses])
    if any(place[a] >= at for a in arguments):
        raise Unfit("other operations stand between its parts")
    first = min(place[n] for n in covered)
    if any(graphs.writes(order[i]) and order[i] not in covered for i in range(first, at)):
        raise Unfit("another tensor is written in place between its parts")
    return order[at]


def _root(variant: Variant, binding: matching.Binding) -> fx.Node:
    return graphs.plain(binding[variant.pattern.outputs[0]])


def _place(variant: Variant, nodes: Sequence[fx.Node], state: str) -> Place:
    kernel = variant.row.kernel if state == FITS else None
    return Place(variant.name, _module(nodes), tuple(n.name for n in nodes), state, kernel)


def _module(nodes: Sequence[fx.Node]) -> str:
    paths = [_path(node) for node in nodes]
    common: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def _path(node: fx.Node) -> list[str]:
    stack = node.meta.get("nn_module_stack") or {}
    names = [path for path, _ in stack.values()]
    return names[-1].split(".") if names and names[-1] else []


def _distinct(told: Sequence[Place]) -> list[Place]:
    """Of one place only the best news: several signatures look at it."""
    best: dict[tuple[str, tuple[str, ...]], Place] = {}
    for place in told:
        key = place.operator, place.nodes
        if key not in best or place.replaced:
            best[key] = place
    return list(best.values())
