"""Where an operator's graph occurs in a larger one: subgraph matching on core ATen.

Placeholders of the pattern match any tensor. Additions and multiplications match in either order.
An occurrence is exact: operators, constants and sizes are equal; `loose` ignores the sizes that
views and factories are given, to find places that differ by their shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from agent.export.runtime.graphs import Untraceable, arguments_of, base_name, plain

COMMUTATIVE = {"add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or"}
SIZED = {"view", "_unsafe_view", "expand", "full", "empty", "zeros", "ones", "slice", "arange"}
STEPS = 20_000
"""Comparisons per starting point: a pattern of many equal branches may not stall a model."""

Binding = dict[fx.Node, fx.Node]
"""Pattern node to target node; of placeholders, to the node that is passed."""


@dataclass(frozen=True)
class Pattern:
    """An operator's core ATen graph."""

    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    """In the order of the operator's results; none is a placeholder."""

    @classmethod
    def of(cls, graph: fx.Graph) -> Pattern:
        """Raises Untraceable where an occurrence could not be told by its operators."""
        inputs = tuple(n for n in graph.nodes if n.op == "placeholder")
        [output] = [n for n in graph.nodes if n.op == "output"]
        outputs = tuple(plain(n) for n in output.args[0] if isinstance(n, fx.Node))
        if len(outputs) != len(output.args[0]) or any(n.op != "call_function" for n in outputs):
            raise Untraceable("an output is an argument or a constant")
        if len(set(outputs)) != len(outputs):
            raise Untraceable("two outputs are the same")
        pattern = cls(inputs, outputs)
        reached = {n for n in pattern.nodes}
        if any(n.op == "get_attr" for n in reached):
            raise Untraceable("it reads a constant tensor")
        if not all(i in reached for i in inputs):
            raise Untraceable("an argument has no influence on its operators")
        return pattern

    @property
    def nodes(self) -> set[fx.Node]:
        """Everything the outputs need."""
        found: set[fx.Node] = set()
        pending = list(self.outputs)
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                pending += map(plain, node.all_input_nodes)
        return found


def occurrences(pattern: Pattern, target: fx.Graph, loose: bool = False) -> Iterator[Binding]:
    """One binding per place of the first output; several outputs are found together."""
    by_name: dict[str, list[fx.Node]] = {}
    for node in target.nodes:
        if node.op == "call_function":
            by_name.setdefault(base_name(node), []).append(node)
    # An output that needs another one fixes both: begin with the one that needs most.
    roots = sorted(pattern.outputs, key=lambda n: -_depth(n))
    for start in by_name.get(base_name(roots[0]), []):
        search = _Search(loose)
        try:
            found = next(search.all_of(roots, start, by_name), None)
        except _TooLong:
            continue
        if found is not None:
            yield found


def _depth(node: fx.Node) -> int:
    seen: set[fx.Node] = set()
    pending = [node]
    while pending:
        for source in map(plain, pending.pop().all_input_nodes):
            if source not in seen:
                seen.add(source)
                pending.append(source)
    return len(seen)


class _TooLong(Exception):
    pass


class _Search:
    """Backtracking over one starting point."""

    def __init__(self, loose: bool) -> None:
        self.loose, self.steps = loose, 0

    def all_of(
        self, roots: Sequence[fx.Node], start: fx.Node, by_name: dict[str, list[fx.Node]]
    ) -> Iterator[Binding]:
        yield from self._rest(roots[1:], by_name, self.node(roots[0], start, {}))

    def _rest(
        self,
        roots: Sequence[fx.Node],
        by_name: dict[str, list[fx.Node]],
        found: Iterator[Binding],
    ) -> Iterator[Binding]:
        if not roots:
            yield from found
            return
        for binding in found:
            if roots[0] in binding:
                yield from self._rest(roots[1:], by_name, iter([binding]))
                continue
            for start in by_name.get(base_name(roots[0]), []):
                yield from self._rest(roots[1:], by_name, self.node(roots[0], start, binding))

    def node(self, pattern: fx.Node, target: fx.Node, binding: Binding) -> Iterator[Binding]:
        """Every way to extend the binding so that `pattern` is `target`."""
        self.steps += 1
        if self.steps > STEPS:
            raise _TooLong
        pattern = plain(pattern)
        if pattern in binding:
            if plain(binding[pattern]) is plain(target):
                yield binding
            return
        if pattern.op == "placeholder":
            if self._alike(pattern, target):
                yield {**binding, pattern: target}
            return
        target = plain(target)
        if target.op != "call_function" or base_name(pattern) != base_name(target):
            return
        if not self.loose and not _same_tensor(pattern, target):
            return
        if target in (t for p, t in binding.items() if p.op != "placeholder"):
            return
        left, right = arguments_of(pattern), arguments_of(target)
        if len(left) != len(right):
            return
        orders = [right]
        if base_name(pattern) in COMMUTATIVE and isinstance(right[0], fx.Node):
            orders.append([right[1], right[0], *right[2:]])
        sized = self.loose and base_name(pattern) in SIZED
        for order in orders:
            yield from self._arguments(left, order, {**binding, pattern: target}, sized)

    def _alike(self, pattern: fx.Node, target: fx.Node) -> bool:
        """Whether a tensor can be the argument: by its rank, or by all of its shape and dtype."""
        here, there = pattern.meta.get("val"), target.meta.get("val")
        if not isinstance(here, torch.Tensor) or not isinstance(there, torch.Tensor):
            return False
        return here.ndim == there.ndim if self.loose else _same_tensor(pattern, target)

    def _arguments(
        self, left: Sequence[Any], right: Sequence[Any], binding: Binding, sized: bool
    ) -> Iterator[Binding]:
        if len(left) != len(right):
            return
        if not left:
            yield binding
            return
        for extended in self._argument(left[0], right[0], binding, sized):
            yield from self._arguments(left[1:], right[1:], extended, sized)

    def _argument(self, left: Any, right: Any, binding: Binding, sized: bool) -> Iterator[Binding]:
        if isinstance(left, fx.Node):
            if isinstance(right, fx.Node):
                yield from self.node(left, right, binding)
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            if sized and not any(isinstance(v, fx.Node) for v in [*left, *right]):
                yield binding
            else:
                yield from self._arguments(left, right, binding, sized)
        elif not isinstance(right, fx.Node) and (
            left == right or (sized and type(left) is type(right) is int)
        ):
            yield binding


def _same_tensor(pattern: fx.Node, target: fx.Node) -> bool:
    here, there = pattern.meta.get("val"), target.meta.get("val")
    if not isinstance(here, torch.Tensor) or not isinstance(there, torch.Tensor):
        return type(here) is type(there)
    return bool(here.shape == there.shape and here.dtype == there.dtype)
