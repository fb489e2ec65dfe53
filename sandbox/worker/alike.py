"""Whether a reference's outputs are what they were, in its own worker."""

from __future__ import annotations

import torch

PIECE_ELEMENTS = 1 << 26


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bitwise equal, NaN included."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return all(
        torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        for one, other in zip(_pieces(left), _pieces(right), strict=True)
    )


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal up to what atomics may reorder: 1e-3 of the largest magnitude; integers exactly."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if not left.is_floating_point() or left.numel() == 0:
        return bool(torch.equal(left, right))
    # What is infinite by design has no size.
    finite = (p.float().nan_to_num(0.0, 0.0, 0.0) for p in _pieces(left))
    scale = max(float(p.abs().max()) for p in finite)
    return all(
        torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-3 * scale, equal_nan=True)
        for a, b in zip(_pieces(left), _pieces(right), strict=True)
    )


def _pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Flat, so short that what is computed on one takes little beside a tensor of gigabytes."""
    return tuple(tensor.contiguous().reshape(-1).split(PIECE_ELEMENTS))
