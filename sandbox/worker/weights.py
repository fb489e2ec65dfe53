"""New parameters and buffers for a reference's model: all of them, or a part of one."""

from __future__ import annotations

import math
import random

import torch

from sandbox.checking.domain import direction
from sandbox.checking.parts import part_of
from sandbox.worker import models

LEAST = 0.1
"""Of what a value is multiplied by, where signs differ: less would change its sign, and a mask's
minus infinity with it (of 131,000 elements four were below zero).
"""


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Move every floating parameter and buffer off its initial value, keeping its scale, and its
    signs but for a part of each that has both.

    Identity-initialised scales, zero biases and unit variances hide dropped operations; signs that
    stay, what was made of them once.
    """
    models.seed_all(seed)
    dice = random.Random(seed)
    for _, tensor in models.state_of(model):
        if shake(tensor) and _both_signs(tensor):
            part_of(tensor, dice).neg_()


def change_part(model: torch.nn.Module, seed: int) -> bool:
    """A part of one parameter (sandbox/checking/parts.py): another sign, or where all are positive
    twice or half the size, which keeps its mean however often a warm reference's is changed. False
    where no parameter has more than one element and is not zero.
    """
    able = [p.detach() for p in model.parameters() if p.is_floating_point() and p.numel() > 1]
    able = [tensor for tensor in able if bool(tensor.any())]
    if not able:
        return False
    dice = random.Random(seed)
    tensor = dice.choice(able)
    part = part_of(tensor, dice)
    part.mul_(dice.choice((2.0, 0.5)) if bool(tensor.min() >= 0) else -1.0)
    return True


def _both_signs(tensor: torch.Tensor) -> bool:
    """Of what is in no order, and none of it infinite."""
    low, high = float(tensor.min()), float(tensor.max())
    return -math.inf < low < 0 < high < math.inf and direction(tensor) is None


def shake(tensor: torch.Tensor) -> bool:
    """Other values of the same scale and sign, in place, in order where they are in order: code may
    search them. False where there are none to be told: zeros and infinities stay.
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    if bool(tensor.any()) and not bool((tensor.isfinite() & (tensor != 0)).any()):
        return False
    noise = torch.randn_like(tensor)
    descending = direction(tensor)
    low, high = tensor.min(), tensor.max()
    if bool(low == high) and bool(low == 0):
        tensor.copy_(0.25 * noise)
    elif bool(low > 0):
        tensor.mul_(torch.exp(0.25 * noise))
    else:
        tensor.mul_((1 + 0.25 * noise).clamp_min(LEAST))
    if descending is not None:
        tensor.copy_(tensor.sort(dim=-1, descending=descending).values)
    return True
