"""Inputs that `get_inputs` makes alike whatever the seed: grids, tables of positions, bases.

Timed calls are to have fresh values. Where these had the same in all of them, what depends on them
alone could be computed once and kept: a matrix exponential of such an input passed at 22x. So each
timed set has its own multiple of them, by a factor that keeps signs, order, zeros, symmetry and any
range around zero, or by what is like that in its domain (sandbox/checking/domain.py). Masks and
labels keep their values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sandbox.checking.domain import rescale
from sandbox.machine.domains import Domain

SHRINKAGE = 0.25
"""At most; hidden inputs are scaled by more."""
FEW_VALUES, SAMPLED = 16, 4096
"""As in sandbox/checking/compare.py, which is the supervisor's."""


def constant_inputs(make: Callable[[int], Sequence[torch.Tensor]], seed: int) -> frozenset[int]:
    """Numbers of the floating inputs of many values that two seeds make alike, as samples tell."""
    first, second = ([_sample(tensor) for tensor in make(seed + n)] for n in range(2))
    return frozenset(
        number
        for number, (one, other) in enumerate(zip(first, second, strict=True))
        if one.is_floating_point()
        and one.element_size() > 1  # float8 has no arithmetic
        and torch.equal(one, other)
        and one.unique().numel() > FEW_VALUES
    )


def shrink(tensor: torch.Tensor, domain: Domain) -> None:
    """In place, by a factor of torch's generator of the CPU: for a GPU's each set would wait."""
    rescale(tensor, domain, 1 - SHRINKAGE * float(torch.rand((), device="cpu")))


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of evenly spaced elements: a whole input may be gigabytes."""
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED)].clone()
