"""A small part of a tensor at a secret place: who looks at a few elements is unlikely to see it.

Of inputs in the supervisor, of parameters in the reference's worker.
"""

from __future__ import annotations

import random

import torch

PART = 64
"""One in so many of a dimension."""


def part_of(tensor: torch.Tensor, secret: random.Random) -> torch.Tensor:
    """A view of a stretch of one dimension; the tensor has more than one element."""
    dim = secret.choice([i for i, size in enumerate(tensor.shape) if size > 1])
    length = max(1, tensor.shape[dim] // PART)
    return tensor.narrow(dim, secret.randrange(tensor.shape[dim] - length + 1), length)
