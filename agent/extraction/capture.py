"""The values that enter and leave regions in one run of a traced module.

Writes in place are run as their functional forms, so that what was captured stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from agent.export.runtime.graphs import functional, writes
from agent.extraction.units import Unit


def captured(unit: Unit, wanted: Iterable[fx.Node]) -> dict[fx.Node, Any]:
    """By node; tensors are kept as they were, strides included."""
    keep = set(wanted)
    walk = _Kept(unit.traced.graph, keep)
    with torch.no_grad():
        walk.run(*unit.values, enable_io_processing=False)
    return walk.kept


class _Kept(fx.Interpreter):  # type: ignore[misc]
    def __init__(self, graph: fx.Graph, keep: set[fx.Node]) -> None:
        super().__init__(torch.nn.Module(), graph=graph)
        self.keep, self.kept = keep, dict[fx.Node, Any]()

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function" and writes(n):
            arguments, named = self.fetch_args_kwargs_from_env(n)
            result = functional(n.target)(*arguments, **named)
        else:
            result = super().run_node(n)
        if n in self.keep:
            self.kept[n] = result
        return result
