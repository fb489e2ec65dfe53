"""Weights spread over the ranks of a training: each holds a part of every tensor, with its gradient
and what the optimizer keeps of it (ZeRO, stage 3, arXiv 1910.02054; torch's fully_shard).

transformers loads each rank's parts alone, and its trainer leaves such a model as it is. Sampling
takes whole weights: they are gathered before it and dropped after it, so that no rank waits for
another with each token. Adapters are small, and every rank has them whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from packaging.version import Version
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from sandbox.errors import ConfigError

NEEDED = "5.23"
"""Of transformers: older trainers wrap a model that is spread once more, or reduce every batch."""
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def refuse_older() -> None:
    """Raises ConfigError where the installed transformers cannot train what is spread."""
    if Version(found := version("transformers")) < Version(NEEDED):
        raise ConfigError(
            f"rl.spread needs transformers {NEEDED} or newer, and {found} is installed; upgrade "
            "it, or leave rl.spread out"
        )


def is_spread(model: Any) -> bool:
    return any(isinstance(module, FSDPModule) for module in model.modules())


@contextmanager
def whole(model: Any) -> Iterator[None]:
    """All weights in every rank meanwhile; where they are spread all ranks come here together."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Of one that is spread, all of it, for which all ranks come here together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def optimizer_state(model: Any, optimizer: Any) -> dict[str, Any]:
    """For torch.save in rank 0; where weights are spread all ranks come here together."""
    if not _of_parts(optimizer):
        state: dict[str, Any] = optimizer.state_dict()
        return state
    found: dict[str, Any] = dict(get_optimizer_state_dict(model, optimizer, options=WHOLE))
    for group in found.get("param_groups", ()):  # nothing where it is gathered in another rank
        # Of a schedule: a new optimizer has none, and torch gives back only what that has.
        group.pop("initial_lr", None)
    return found


def set_optimizer_state(model: Any, optimizer: Any, state: Mapping[str, Any]) -> None:
    if not _of_parts(optimizer):
        optimizer.load_state_dict(state)
    elif state.get("state"):  # SGD keeps nothing, which torch would not take.
        set_optimizer_state_dict(model, optimizer, dict(state), options=WHOLE)


def _of_parts(optimizer: Any) -> bool:
    """Not where adapters alone are trained."""
    return any(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"])
