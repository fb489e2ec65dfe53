"""The first weights of a run, which KL is measured against.

TRL makes its reference from what a trainer is given: a full model from the folder that its config
names, adapters from a copy of the present ones. Here every generation of rollouts has a trainer of
its own, so the present weights are not the first ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl.policy import Policy

PRESENT, COPY = ".default.", ".ref."
"""In the names of adapters' parameters: the trained one, and TRL's reference."""


@dataclass(frozen=True)
class Anchor:
    """Of a policy with adapters, those; the base model does not change."""

    source: str
    """The folder or hub's name that the first weights come from."""
    adapters: dict[str, torch.Tensor] | None

    def before(self, model: Any) -> None:
        """Ahead of a trainer's making."""
        if self.adapters is None:
            model.config._name_or_path = self.source

    def held(self, model: Any) -> None:
        """Once TRL has copied the present adapters: put the first ones in that place."""
        for name, tensor in (self.adapters or {}).items():
            with torch.no_grad():
                model.get_parameter(name.replace(PRESENT, COPY)).copy_(tensor)

    def after(self, model: Any) -> None:
        """The reference is no part of what is saved."""
        if self.adapters is not None:
            model.delete_adapter(COPY.strip("."))


def anchor_of(first: Policy, source: str | Path) -> Anchor:
    """`first` has the weights that were loaded from `source`, before any update."""
    if not hasattr(first.model, "peft_config"):
        return Anchor(str(source), None)
    adapters = {
        name: tensor.detach().cpu().clone()
        for name, tensor in first.model.named_parameters()
        if PRESENT in name
    }
    return Anchor(str(source), adapters)
