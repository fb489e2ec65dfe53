"""Hidden inputs beside the scaled ones: another distribution, one element, some signs or the order
changed.

Each is made from a case's own inputs and keeps what an honest kernel may rely on: zeros (so
triangles), sizes, symmetry, masks of a few values, and signs as far as those of x -1 do. What
cannot keep it is left out. They break thresholds that follow the scale, sums and samples of
contents as cache keys, results remembered by sample, and a look at a few elements that tells what
the rest is like. Runs in the supervisor, on its own copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from sandbox.checking.compare import few_values
from sandbox.checking.parts import part_of

FLATTENED = 1 / 3
"""Exponent of |x|: a normal distribution becomes two humps and loses its tails."""
TRIES = 16
"""For an element that may change."""
ALIKE = frozenset({"one element changed", "samples permuted"})
"""Changes that a sum or a sample of the contents may not tell."""
ZEROS = 0.01
"""Share of zeros from which they may mean something: a triangle, a mask, a sparse matrix."""

Change = Callable[[Sequence[torch.Tensor], random.Random], bool]
"""Changes floating inputs in place; False where that would say nothing, or break what they are."""


def flatten(inputs: Sequence[torch.Tensor], secret: random.Random) -> bool:
    """Each value's sign times the cube root of its size: order, zeros, ones and symmetry stay."""
    for tensor in inputs:
        tensor.copy_(tensor.double().abs().pow(FLATTENED).copysign(tensor.double()))
    return bool(inputs)


def change_one(inputs: Sequence[torch.Tensor], secret: random.Random) -> bool:
    """One element of one tensor moves to the far end of that tensor's own range."""
    able = [t for t in inputs if t.numel() > 1 and not few_values(t) and not _symmetric(t)]
    if not able:
        return False
    tensor = secret.choice(able)
    low, high = float(tensor.amin()), float(tensor.amax())
    for _ in range(TRIES):
        place = tuple(secret.randrange(size) for size in tensor.shape)
        value = float(tensor[place])
        if value != 0.0:  # a zero may be one by construction
            tensor[place] = low if value - low > high - value else high
            return True
    return False


def permute(inputs: Sequence[torch.Tensor], secret: random.Random) -> bool:
    """The samples (dimension 0) of all tensors that have equally many, in another order."""
    count = next((t.shape[0] for t in inputs if t.ndim > 1), 0)
    able = [t for t in inputs if t.ndim > 1 and t.shape[0] == count]
    if count < 2 or any(_symmetric(t) or _zeros(t) > ZEROS for t in able):
        return False
    order = list(range(count))
    while order == sorted(order):
        secret.shuffle(order)
    for tensor in able:
        tensor.copy_(tensor[torch.tensor(order, device=tensor.device)])
    return bool(able)


def negate_part(inputs: Sequence[torch.Tensor], secret: random.Random) -> bool:
    """Signs change in a stretch of one dimension of each tensor."""
    able = [t for t in inputs if t.numel() > 1 and not few_values(t) and not _symmetric(t)]
    able = [t for t in able if _zeros(t) <= ZEROS]
    for tensor in able:
        part_of(tensor, secret).neg_()
    return bool(able)


CHANGES: Mapping[str, Change] = {
    "flattened": flatten,
    "one element changed": change_one,
    "samples permuted": permute,
    "part negated": negate_part,
}
"""By the name that a case gets: `given, one element changed`."""


def _zeros(tensor: torch.Tensor) -> float:
    return float((tensor == 0).double().mean())


def _symmetric(tensor: torch.Tensor) -> bool:
    square = tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2]
    return square and bool(torch.equal(tensor, tensor.mT))
