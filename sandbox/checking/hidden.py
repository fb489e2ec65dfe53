"""Hidden inputs beside the scaled ones: another distribution, one element, some signs or the order
changed, or masks elsewhere.

Each is made from a case's own inputs and keeps what an honest kernel may rely on: zeros (so
triangles) but for those of masks, sizes, symmetry, masks of a few values, what inputs visibly are
(sandbox/checking/domain.py), and signs as far as those of x -1 do. What cannot keep it is left out.
They break thresholds that follow the scale, sums and samples of contents as cache keys, results
remembered by sample, a look at a few elements that tells what the rest is like, and code that knows
a mask by heart. Runs in the supervisor, on its own copies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch

from sandbox.checking.compare import few_values
from sandbox.checking.domain import move, rescale, symmetric
from sandbox.checking.parts import part_of
from sandbox.machine.domains import Domain
from sandbox.machine.trees import Leaf

FLATTENED = 1 / 3
"""Exponent of |x|: a normal distribution becomes two humps and loses its tails."""
SHARPENED = 3.0
"""Of definite matrices, whose elementwise powers are definite where they are whole (Schur)."""
MASKS_MOVED = "masks moved"
TRIES = 16
"""For an element that may change."""
ALIKE = frozenset({"one element changed", "samples permuted"})
"""Changes that a sum or a sample of the contents may not tell."""
ZEROS = 0.01
"""Share of zeros from which they may mean something: a triangle, a mask, a sparse matrix."""

Change = Callable[[Sequence[torch.Tensor], Sequence[Domain], random.Random], bool]
"""Changes inputs in place; False where that would say nothing, or break what they are."""


def concerned(name: str, inputs: Sequence[Leaf], domains: Sequence[Domain]) -> list[int]:
    """Numbers of the inputs that this change is given: what it is made for, or floating ones."""
    moves = name == MASKS_MOVED
    pairs = zip(inputs, domains, strict=True)
    return [n for n, (leaf, d) in enumerate(pairs) if (d.apart if moves else leaf.floating)]


def flatten(
    inputs: Sequence[torch.Tensor], domains: Sequence[Domain], secret: random.Random
) -> bool:
    """Each value's sign times the cube root of its size: order, zeros, ones and symmetry stay."""
    able = [pair for pair in zip(inputs, domains, strict=True) if not pair[1].moved]
    for tensor, domain in able:
        if domain in (Domain.DISTRIBUTION, Domain.LOG_DISTRIBUTION):
            rescale(tensor, domain, FLATTENED)
        else:
            power = SHARPENED if domain is Domain.DEFINITE else FLATTENED
            tensor.copy_(tensor.double().abs().pow(power).copysign(tensor.double()))
    return bool(able)


def change_one(
    inputs: Sequence[torch.Tensor], domains: Sequence[Domain], secret: random.Random
) -> bool:
    """One element of one tensor moves to the far end of that tensor's own range."""
    able = [t for t in _free(inputs, domains) if not few_values(t) and not symmetric(t)]
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


def permute(
    inputs: Sequence[torch.Tensor], domains: Sequence[Domain], secret: random.Random
) -> bool:
    """The samples (dimension 0) of all tensors that have equally many, in another order."""
    count = next((t.shape[0] for t in inputs if t.ndim > 1), 0)
    able = [t for t in inputs if t.ndim > 1 and t.shape[0] == count]
    if count < 2 or any(symmetric(t) or _zeros(t) > ZEROS for t in able):
        return False
    order = list(range(count))
    while order == sorted(order):
        secret.shuffle(order)
    for tensor in able:
        tensor.copy_(tensor[torch.tensor(order, device=tensor.device)])
    return bool(able)


def negate_part(
    inputs: Sequence[torch.Tensor], domains: Sequence[Domain], secret: random.Random
) -> bool:
    """Signs change in a stretch of one dimension of each tensor."""
    able = [t for t in _free(inputs, domains) if not few_values(t) and not symmetric(t)]
    able = [t for t in able if _zeros(t) <= ZEROS]
    for tensor in able:
        part_of(tensor, secret).neg_()
    return bool(able)


def move_masks(
    inputs: Sequence[torch.Tensor], domains: Sequence[Domain], secret: random.Random
) -> bool:
    """Masks and labels keep their values and have them elsewhere; what is the same everywhere, as a
    mask that masks nothing or a state of zeros, is it no longer.
    """
    able = [tensor for tensor, domain in zip(inputs, domains, strict=True) if domain.apart]
    return any([move(tensor, secret) for tensor in able])


CHANGES: Mapping[str, Change] = {
    "flattened": flatten,
    "one element changed": change_one,
    "samples permuted": permute,
    "part negated": negate_part,
    MASKS_MOVED: move_masks,
}
"""By the name that a case gets: `given, one element changed`."""


def _zeros(tensor: torch.Tensor) -> float:
    return float((tensor == 0).double().mean())


def _free(inputs: Sequence[torch.Tensor], domains: Sequence[Domain]) -> list[torch.Tensor]:
    """Those whose single values are bound to nothing."""
    pairs = zip(inputs, domains, strict=True)
    return [t for t, domain in pairs if domain is Domain.REAL and t.numel() > 1]
