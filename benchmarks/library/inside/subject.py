"""One operator of the library, with a layer of the reference's parameters and inputs to call it."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.func import functional_call


class Subject:
    """The operator with a layer of the reference's parameters, and inputs as they were measured."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.package = importlib.import_module(request["package"])
        self.name, self.device = request["operator"], torch.device(request["device"])
        self.bound, self.seed = float(request["bound"]), int(request["seed"])
        self.core = request.get("core")
        self.op = self.package.operator(self.name)
        self.source = sys.modules[self.op.reference.__module__]
        vars(self.source).update(request["constants"])
        torch.manual_seed(self.seed)
        self.layer = self.package.layer(self.name).to(self.device)
        self.named = dict([*self.layer.named_parameters(), *self.layer.named_buffers()])
        self.state = [self.named[name].detach() for name in self.op.operator.state]
        # A layer is the reference's module but for its forward, and is constructed like it.
        runtime = sys.modules[type(self.layer).__module__]
        init = runtime.models.init_values(self.op.operator.init)
        self.model = self.op.reference(*init).to(self.device)
        self.room = self.bound

    def inputs(self, seed: int) -> list[Any]:
        torch.manual_seed(self.seed + seed)
        dtype = getattr(torch, self.op.operator.dtype)

        def cast(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return value.to(self.device, dtype if value.is_floating_point() else None)

        with torch.device(self.device):  # made on the CPU they took longer than all the calls
            return [cast(value) for value in self.source.get_inputs()]

    def call(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return self.call_of([*inputs, *self.state])

    def call_of(self, everything: Sequence[Any]) -> list[torch.Tensor]:
        return listed(self.op(*everything))

    def reference(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """With the layer's own parameters and buffers."""
        return listed(functional_call(self.model, self.named, tuple(inputs)))

    def count(self, what: str = "kernel") -> int:
        return int(self.package.counts()[self.name].get(what, 0))

    def same(self, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> str:
        """How far apart; raises AssertionError where that is too far."""
        apart = [error(f, w) for f, w in zip(found, wanted, strict=True)]
        assert max(apart) <= self.room, f"{max(apart):.1e} off, {self.room:.1e} allowed"
        return f"{max(apart):.1e} off"


def listed(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error norm; 0 or infinite for integers."""
    assert found.shape == wanted.shape, f"{tuple(found.shape)}, not {tuple(wanted.shape)}"
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(found, wanted) else math.inf
    off = float((found.double() - wanted.double()).norm())
    size = float(wanted.double().norm())
    return off / size if size else off


def floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def synchronise(subject: Subject) -> None:
    if subject.device.type == "cuda":
        torch.cuda.synchronize()
