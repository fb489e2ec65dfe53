"""What a reference's inputs are (sandbox/checking/domain.py), labels included.

Float inputs of whole numbers are labels where the reference makes integers of them: then fractions
change nothing. Whole numbers that it computes with are numbers like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sandbox.checking.compare import SAMPLED
from sandbox.checking.domain import domain_of, movable
from sandbox.machine.domains import Domain
from sandbox.worker.alike import close, same

LEAST, MOST = 0.05, 0.45
"""Fractions, unlike each other so that who compares labels sees it. Neither rounding nor cutting
off leaves anything of them."""
LARGEST = 1 << 20
"""Beyond, whatever a float holds may be whole."""

Outputs = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
"""Of a call on these input leaves, which are left as they are; equal calls under equal seeds."""


def domains(inputs: Sequence[torch.Tensor], outputs: Outputs) -> list[Domain]:
    """One of each input leaf."""
    found = [domain_of(tensor) for tensor in inputs]
    for number, tensor in enumerate(inputs):
        if found[number] in (Domain.REAL, Domain.ORDERED) and _whole(tensor):
            fraction = torch.empty_like(tensor).uniform_(LEAST, MOST).copysign(tensor)
            other = [*inputs[:number], tensor + fraction, *inputs[number + 1 :]]
            if not torch.equal(other[number], tensor) and not _changed(inputs, other, outputs):
                found[number] = Domain.LABELS
    return found if _beside_data(inputs, found) else [domain.alone for domain in found]


def _beside_data(inputs: Sequence[torch.Tensor], found: Sequence[Domain]) -> bool:
    """Whether an input of several values is neither mask nor bounds. Else those are the data: ones
    and zeros that are multiplied, a grid that is sorted.
    """
    pairs = zip(inputs, found, strict=True)
    return any(domain.alone is domain and tensor.numel() > 1 for tensor, domain in pairs)


def _changed(
    inputs: Sequence[torch.Tensor], other: Sequence[torch.Tensor], outputs: Outputs
) -> bool:
    try:
        first, second, third = outputs(inputs), outputs(inputs), outputs(other)
    except Exception:  # noqa: BLE001  a task raises anything on inputs that it does not make
        return True
    # Sums by atomics come out otherwise each time.
    alike = same if all(map(same, first, second)) else close
    return len(first) != len(third) or not all(map(alike, first, third))


def _whole(tensor: torch.Tensor) -> bool:
    """Whether it holds whole numbers only, and more than one."""
    if not tensor.is_floating_point() or tensor.element_size() == 1 or tensor.numel() < 2:
        return False
    flat = tensor.reshape(-1)
    sampled = flat[:: max(1, flat.numel() // SAMPLED)]
    if not torch.equal(sampled, sampled.round()):
        return False
    low, high = float(tensor.amin()), float(tensor.amax())
    within = max(abs(low), abs(high)) <= LARGEST and low < high
    return within and bool((tensor == tensor.round()).all()) and movable(tensor)
