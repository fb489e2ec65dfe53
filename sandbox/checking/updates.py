"""What a call updates in place, inputs or buffers: whether two sides left the same values there.

Errors are told by the size of the change as well as by that of the value: beside a large value an
update that is left out is no error at all. What rounding to the tensor's own type explains is
forgiven. Runs in the supervisor, on its own copies.
"""

from __future__ import annotations

import torch

from sandbox.checking import compare
from sandbox.observation import Errors

ROUNDINGS = 4.0
"""Of the tensor's type, each of the larger of the two values: a reference may round in between."""
INPUT_SHARE = {"float64": 1e-9, "float32": 1e-3, "float16": 5e-3, "bfloat16": 4e-2}
"""Of a change, by which one side's may differ from the other's in norm: TF32 makes 2.8e-4 of a
product's, bfloat16 2e-3."""
STATE_BOUND = Errors(1e-3, 1e-2, 1e-1)
"""Of buffers such as running statistics, beside that of what changed."""
BUFFER_SHARE = 5e-2
"""Of running statistics: means near zero have few digits in common, whoever sums them."""
ELEMENT_TIMES = 8.0
"""As far as one element's may differ beyond the norm's."""


def coarsened(bound: Errors, dtype: torch.dtype) -> Errors:
    """A bound on values that are kept in this type, of which bfloat16 has eight bits."""
    if not dtype.is_floating_point:
        return bound
    rounding = ROUNDINGS * torch.finfo(dtype).eps
    return bound.worst(Errors(rounding, 4 * rounding, 16 * rounding))


def input_share(dtype: torch.dtype) -> float:
    return INPUT_SHARE.get(str(dtype).removeprefix("torch."), INPUT_SHARE["float32"])


def same_buffer(found: torch.Tensor, expected: torch.Tensor, before: torch.Tensor) -> bool:
    """A parameter or buffer after a call: by its size, and by how much it was to change."""
    near = compare.errors(found, expected).within(coarsened(STATE_BOUND, expected.dtype))
    changed = not torch.equal(expected, before)
    return near and (not changed or same_update(found, expected, before, BUFFER_SHARE))


def same_update(
    found: torch.Tensor, expected: torch.Tensor, before: torch.Tensor, share: float
) -> bool:
    """Whether `found` is what `before` was to become, `expected` being what the reference made of
    it; all of one shape and type. What is no float is exact. What a change below the type's last
    digit makes of a value is up to how it is rounded, so that nothing else is.
    """
    if not expected.is_floating_point():
        return bool(torch.equal(found, expected))
    rounding = ROUNDINGS * torch.finfo(expected.dtype).eps
    apart_2 = change_2 = rounded_2 = 0.0
    for some, wanted, old in compare.pieces(found, expected, before):
        is_there, is_wanted, was = some.double(), wanted.double(), old.double()
        alike = (is_there == is_wanted) | (is_there.isnan() & is_wanted.isnan())
        finite = is_there.isfinite() & is_wanted.isfinite() & was.isfinite()
        if bool((~finite & ~alike).any()):
            return False
        zero = torch.zeros((), dtype=torch.float64, device=is_there.device)
        apart = torch.where(finite, is_there - is_wanted, zero).abs()
        change = torch.where(finite, is_wanted - was, zero).abs()
        rounded = rounding * torch.where(finite, torch.maximum(is_wanted.abs(), was.abs()), zero)
        typical = change.square().mean().sqrt()
        allowed = ELEMENT_TIMES * (share * torch.maximum(change, typical) + rounded)
        if bool((apart > allowed).any()):
            return False
        apart_2 += float(apart.square().sum())
        change_2 += float(change.square().sum())
        rounded_2 += float(rounded.square().sum())
    return bool(apart_2**0.5 <= share * change_2**0.5 + rounded_2**0.5)
