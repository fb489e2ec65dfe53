"""How much of a GPU a policy takes: where lanes measure on the same one, what it has they have not.

Its share is bounded while it samples and learns; and while it does neither it can be in the host's
memory, with what its optimizer keeps.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rl.config import TrainConfig
from rl.policy import Policy
from sandbox.errors import WarpsmithError

REMEDY = (
    "lower sampling.batch or rl.batch (a divisor of rl.group), set gradient_checkpointing, or "
    "raise memory_share, and the same command goes on; or set lora, in a run of another name"
)


def bounded(config: TrainConfig, device: str) -> None:
    """From now on this process holds at most `memory_share` of its GPU's memory; what its context
    and libraries take comes on top.
    """
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(config.memory_share)


@contextmanager
def has_room(config: TrainConfig) -> Iterator[None]:
    """Raises WarpsmithError in one line where the policy's GPU has none."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        share = f" in {config.memory_share:.0%} of its memory" if config.memory_share < 1 else ""
        raise WarpsmithError(f"the policy's GPU has no room for it{share}: {REMEDY}") from error


class Rest:
    """Of one policy, whose tensors go to the host's memory and back: each parameter stays the one
    that the optimizer knows, and nothing of it changes.
    """

    def __init__(self, policy: Policy, optimizer: Any = None) -> None:
        """`policy`: on its GPU. On the CPU there is nowhere to go."""
        self.policy, self.optimizer = policy, optimizer
        self._device: torch.device = policy.model.device
        self._moved: list[tuple[dict[str, Any], str]] = []
        """Of the optimizer: what was on the GPU. Counts of steps never are."""

    def begin(self) -> None:
        if self._device.type != "cuda":
            return
        for parameter in self.policy.model.parameters():
            parameter.grad = None  # Its update is over; a gradient is where its parameter is.
        self.policy.model.to("cpu")
        for state in [] if self.optimizer is None else self.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.device.type == "cuda":
                    state[name] = value.cpu()
                    self._moved.append((state, name))
        gc.collect()
        torch.cuda.empty_cache()

    def end(self) -> None:
        self.policy.model.to(self._device)
        for state, name in self._moved:
            state[name] = state[name].to(self._device)
        self._moved.clear()

    @contextmanager
    def over(self) -> Iterator[None]:
        """The policy is on its GPU meanwhile, and rests again."""
        self.end()
        try:
            yield
        finally:
            self.begin()
