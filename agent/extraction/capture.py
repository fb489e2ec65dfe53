"""The values that enter and leave regions in one run of a traced module.

Writes in place are run as their functional forms, so that what was captured stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from agent.export.runtime.graphs import functional, writes
from agent.extraction.units import Unit


def captured(
    unit: Unit,
    wanted: Iterable[fx.Node],
    values: Sequence[Any] | None = None,
    note: Callable[[Any], Any] = lambda value: value,
) -> dict[fx.Node, Any]:
    """By node, what `note` makes of its value, by default the value as it was, strides included.

    `values` of another call of the unit than its first.
    """
    walk = _Kept(unit.traced.graph, set(wanted), note)
    with torch.no_grad():
        walk.run(*(unit.values if values is None else values), enable_io_processing=False)
    return walk.kept


class _Kept(fx.Interpreter):  # type: ignore[misc]
    def __init__(self, graph: fx.Graph, keep: set[fx.Node], note: Callable[[Any], Any]) -> None:
        super().__init__(torch.nn.Module(), graph=graph)
        self.keep, self.note, self.kept = keep, note, dict[fx.Node, Any]()

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function" and writes(n):
            arguments, named = self.fetch_args_kwargs_from_env(n)
            result = functional(n.target)(*arguments, **named)
        else:
            result = super().run_node(n)
        if n in self.keep:
            self.kept[n] = self.note(result)
        return result
