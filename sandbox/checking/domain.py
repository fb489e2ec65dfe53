"""What an input visibly is, and other values that leave it so.

A mask times three masks nothing, negated bounds are in no order, and a kernel that relies on either
is right. What is kept is what all of an input's values agree on and chance does not make; sizes and
signs of plain numbers are none of it: U[0, 1) may be negated. What keeps its values is moved
instead, so that no kernel passes that leaves the input aside.
"""

from __future__ import annotations

import math
import random

import torch

from sandbox.checking.compare import SAMPLED
from sandbox.machine.domains import Domain

FAR = -1e3
"""What is added to mask is at most so much: -1e4, -1e9, the least of a type, minus infinity."""
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
LEAST_WHOLE = 4
"""Of fewer whole numbers zeros and ones may be sizes."""
SAMPLED_ROWS = 16
LEAST_ORDERED = 4
"""Of fewer values the order says nothing."""
UNITY = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
LEAST_UNITY = 1e-4
"""By how much a sum may miss one, by type."""
UNLIKE = 1e-2
"""A distribution to the power of three differs by so much at least: one that is uniform would be
what it was, and who leaves it aside would be right."""
LEAST_POWER, MOST_POWER = 0.25, 4.0
"""Of a distribution: of nearly uniform ones a divergence is all rounding, and others are all zeros.
"""
MOST_DEFINITE = 1 << 22
"""Elements of a tensor whose definiteness is asked for."""
TRIES = 4
RARE, SPREAD = 64, 0.25
"""Places of what is the same everywhere, of which one is another; and by how much other values
differ, as parameters do (sandbox/worker/weights.py)."""


def domain_of(tensor: torch.Tensor) -> Domain:
    """All but LABELS, which values do not tell."""
    if _uniform(tensor):
        return Domain.UNIFORM
    if tensor.dtype in WHOLE:
        return Domain.MASK if _zeros_and_ones(tensor) else Domain.REAL
    if not tensor.is_floating_point() or tensor.element_size() == 1 or tensor.numel() < 2:
        return Domain.REAL
    if _masks(tensor):
        return Domain.MASK
    for domain in (Domain.DISTRIBUTION, Domain.LOG_DISTRIBUTION):
        if _sums_to_one(tensor, domain):
            return domain
    if _ordered(tensor):
        return Domain.ORDERED
    return Domain.DEFINITE if _definite(tensor) else Domain.REAL


def rescale(tensor: torch.Tensor, domain: Domain, scale: float) -> None:
    """In place: values `scale` times as large, or what comes nearest to that within the domain. Of
    a distribution it is the logarithms', and definite matrices take other signs by a congruence.
    Random signs are of torch's generator.
    """
    if domain is Domain.LABELS:
        return
    if domain is Domain.MASK:
        low = float(tensor.amin())
        if math.isfinite(low) and low <= FAR:
            # Scores are products of two that are scaled, and it is to stay far below them.
            tensor.mul_(max(1.0, scale * scale)).clamp_(min=torch.finfo(tensor.dtype).min)
    elif domain in (Domain.DISTRIBUTION, Domain.LOG_DISTRIBUTION):
        power = min(max(abs(scale), LEAST_POWER), MOST_POWER)
        tensor.copy_(_tempered(tensor, domain, math.copysign(power, scale)))
    elif domain is Domain.DEFINITE:
        tensor.mul_(abs(scale))
        if scale < 0:
            signs = torch.randint(2, (tensor.shape[-1],), device=tensor.device) * 2 - 1
            tensor.mul_(torch.outer(signs, signs).to(tensor.dtype))
    else:
        tensor.mul_(scale)
        if domain is Domain.ORDERED and scale < 0:
            tensor.copy_(tensor.flip(-1))


def move(tensor: torch.Tensor, secret: random.Random) -> bool:
    """In place: the values at other places, one dimension permuted, so that every row and column
    has as many of each as one had before. Rows in order stay so; a single one gets other numbers of
    its values. What is the same everywhere has other values here and there. False where all that
    leaves it what it was.
    """
    found = _unlike(tensor, secret) if _uniform(tensor) else _moved(tensor, secret)
    if found is not None:
        tensor.copy_(found)
    return found is not None


def movable(tensor: torch.Tensor) -> bool:
    """Not so of a unit matrix, which is symmetric whatever the order."""
    return _moved(tensor, random.Random(0)) is not None


def direction(tensor: torch.Tensor) -> bool | None:
    """Whether all rows, of different values, fall; None where they neither fall nor rise."""
    if tensor.ndim == 0 or tensor.shape[-1] < 2:
        return None
    before, after = tensor[..., :-1], tensor[..., 1:]
    if not bool((before != after).any()):
        return None
    if bool((before <= after).all()):
        return False
    return True if bool((before >= after).all()) else None


def symmetric(tensor: torch.Tensor) -> bool:
    square = tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2]
    return square and bool(torch.equal(tensor, tensor.mT))


def _moved(tensor: torch.Tensor, secret: random.Random) -> torch.Tensor | None:
    dice = torch.Generator("cpu").manual_seed(secret.getrandbits(62))
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    secret.shuffle(dims)
    ordered, mirrored = direction(tensor) is not None, symmetric(tensor)
    for dim in (dim for dim in dims if not (ordered and dim == tensor.ndim - 1)):
        for _ in range(TRIES):
            places = torch.randperm(tensor.shape[dim], generator=dice, device="cpu")
            found = tensor.index_select(dim, places.to(tensor.device))
            if mirrored and dim >= tensor.ndim - 2:
                other = 2 * tensor.ndim - 3 - dim
                found = found.index_select(other, places.to(tensor.device))
            if not torch.equal(found, tensor):
                return found
    for _ in range(TRIES if ordered else 0):
        size = tensor.shape[-1]
        places = torch.randint(size, (size,), generator=dice, device="cpu").sort().values
        found = tensor.index_select(-1, places.to(tensor.device))
        if not torch.equal(found, tensor) and bool((found != found.flatten()[0]).any()):
            return found
    return None


def _uniform(tensor: torch.Tensor) -> bool:
    """Of whole numbers ones alone: whatever they index has a first place, and zeros may have no
    second.
    """
    whole = tensor.dtype in WHOLE
    flat = tensor.reshape(-1)
    least = 1 if tensor.dtype is torch.bool else LEAST_WHOLE if whole else 2
    if flat.numel() < least or tensor.is_complex() or not (whole or tensor.element_size() > 1):
        return False
    value, sampled = flat[0], flat[:: max(1, flat.numel() // SAMPLED)]
    if whole and tensor.dtype is not torch.bool and int(value) != 1:
        return False
    return bool((sampled == value).all()) and bool((flat == value).all() & value.isfinite())


def _unlike(tensor: torch.Tensor, secret: random.Random) -> torch.Tensor:
    """Of what is the same everywhere: booleans the other way in one place of `RARE` and one at
    least, ones zero there, as a mask's, and else of another size each; zeros any small number.
    """
    where = tensor.device  # A GPU's may be of gigabytes.
    dice = torch.Generator(where).manual_seed(secret.getrandbits(62))
    rare = torch.rand(tensor.shape, generator=dice, device=where) < 1 / RARE
    rare.view(-1)[secret.randrange(tensor.numel())] = True
    if tensor.dtype is torch.bool:
        return tensor ^ rare
    value = float(tensor.reshape(-1)[0])
    found = tensor
    if tensor.is_floating_point():
        noise = SPREAD * torch.randn(tensor.shape, generator=dice, device=where)
        found = (noise if value == 0.0 else value * noise.exp()).to(tensor.dtype)
    return found.masked_fill(rare, 0) if value == 1.0 else found


def _zeros_and_ones(tensor: torch.Tensor) -> bool:
    if tensor.numel() < LEAST_WHOLE:
        return False
    within = tensor.dtype is torch.bool or (int(tensor.amin()), int(tensor.amax())) == (0, 1)
    return within and movable(tensor)


def _masks(tensor: torch.Tensor) -> bool:
    flat = tensor.reshape(-1)
    if int(flat[:: max(1, flat.numel() // SAMPLED)].unique().numel()) > 2:
        return False
    low, high = float(tensor.amin()), float(tensor.amax())
    # Of other pairs, as 0 and 1.25 of a dropout, the values themselves are to be read.
    known = (low, high) in ((0.0, 1.0), (-1.0, 1.0)) or (low <= FAR and high == 0.0)
    return known and bool(((tensor == low) | (tensor == high)).all()) and movable(tensor)


def _ordered(tensor: torch.Tensor) -> bool:
    if tensor.ndim == 0 or tensor.shape[-1] < LEAST_ORDERED:
        return False
    some = tensor.reshape(-1, tensor.shape[-1])[:SAMPLED_ROWS]
    # Of a mask some rows are all alike, and the first ones may be.
    alike = not bool((some != some[:, :1]).any())
    if not alike and direction(some) is None:
        return False
    # Where zeros may be by construction, as of a triangle, they are not to change places.
    return direction(tensor) is not None and int((tensor == 0).sum(-1).amax()) <= 1


def _sums_to_one(tensor: torch.Tensor, domain: Domain) -> bool:
    if tensor.ndim == 0 or tensor.shape[-1] < 2:
        return False
    rows = tensor.reshape(-1, tensor.shape[-1])
    near = max(LEAST_UNITY, UNITY.get(tensor.dtype, 0.0))
    for some in (rows[:SAMPLED_ROWS], rows):
        # An exponential is never negative.
        chances = some if domain is Domain.DISTRIBUTION else some.exp()
        sums = chances.sum(-1, dtype=torch.float32)
        if bool((chances < 0).any()) or not bool(((sums - 1).abs() <= near).all()):
            return False
    chances = rows[:SAMPLED_ROWS].double()
    chances = chances if domain is Domain.DISTRIBUTION else chances.exp()
    apart = _tempered(chances, Domain.DISTRIBUTION, 3.0) - chances
    return float(apart.norm()) > UNLIKE * float(chances.norm())


def _tempered(tensor: torch.Tensor, domain: Domain, power: float) -> torch.Tensor:
    """To that power and summing to one again; what is impossible stays so."""
    logs = tensor.double() if domain is Domain.LOG_DISTRIBUTION else tensor.double().log()
    logs = torch.where(logs.isinf(), logs, power * logs)
    found = logs.log_softmax(-1) if domain is Domain.LOG_DISTRIBUTION else logs.softmax(-1)
    return found.to(tensor.dtype)


def _definite(tensor: torch.Tensor) -> bool:
    if tensor.numel() > MOST_DEFINITE or not symmetric(tensor):
        return False
    if not bool((tensor - torch.diag_embed(tensor.diagonal(dim1=-2, dim2=-1))).any()):
        return False  # of a diagonal no congruence changes signs
    # On the CPU: a GPU's solver would be loaded for it.
    failed = torch.linalg.cholesky_ex(tensor.cpu().double()).info
    return not bool(failed.any())
