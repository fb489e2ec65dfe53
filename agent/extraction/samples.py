"""What was captured of a tensor, and Python that makes another one like it.

The values of a task's inputs are drawn afresh for every call, so what is written down is their
distribution: mean, deviation and range; for integers the range; for masks how much they hide. Not
kept: how elements depend on each other (rows that sum to one, sorted keys).
"""

from __future__ import annotations

import math

import torch

from agent.extraction.figures import CAUSAL, RANDOM_MASK, Sample, rounded


def sample(tensor: torch.Tensor) -> Sample:
    """Of a tensor with at least one element; raises ValueError for NaN, +inf and complex values."""
    if tensor.is_complex():
        raise ValueError("it has complex tensors")
    if tensor.numel() == 0:
        raise ValueError("it has an empty tensor")
    values = tensor.detach().to("cpu", torch.float64)
    hidden = values == -math.inf
    share = float(hidden.double().mean())
    finite = values[~hidden] if share else values.reshape(-1)
    if not bool(finite.isfinite().all()) or not finite.numel():
        raise ValueError("its values are not finite")
    std = float(finite.std(correction=0))
    return Sample(
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        rounded(float(finite.mean())),
        rounded(std),
        float(finite.min()) if not tensor.is_floating_point() else rounded(float(finite.min())),
        float(finite.max()) if not tensor.is_floating_point() else rounded(float(finite.max())),
        _spread(hidden) if share else None,
        rounded(share),
    )


def _spread(hidden: torch.Tensor) -> str:
    if hidden.ndim >= 2:
        upper = torch.ones(hidden.shape[-2:], dtype=torch.bool).triu(1)
        if bool((hidden == upper).all()):
            return CAUSAL
    return RANDOM_MASK


def draw(found: Sample) -> str:
    """A Python expression for a tensor with this shape, these strides and this distribution."""
    shape, stride = found.shape, found.stride
    if found.hidden is not None:
        return _mask(found)
    order = sorted(range(len(shape)), key=lambda d: (-stride[d], d))
    if _dense([shape[d] for d in order], [stride[d] for d in order]):
        text = _values(found, tuple(shape[d] for d in order))
        if order != list(range(len(shape))):
            text += f".permute({', '.join(str(order.index(d)) for d in range(len(shape)))})"
        return text
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return f"{_values(found, (extent,))}.as_strided({shape}, {stride})"


def _dense(shape: list[int], stride: list[int]) -> bool:
    """Row-major without gaps, for dimensions in the order of their strides."""
    step = 1
    for size, jump in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and jump != step:
            return False
        step *= size
    return True


def _values(found: Sample, shape: tuple[int, ...]) -> str:
    sizes = repr(shape)
    if found.dtype == "bool":
        if found.mean in (0.0, 1.0):
            return f"torch.full({sizes}, {bool(found.mean)})"
        return f"(torch.rand({sizes}) < {found.mean})"
    if not found.floating:
        dtype = "" if found.dtype == "int64" else f", dtype=torch.{found.dtype}"
        return f"torch.randint({int(found.low)}, {int(found.high) + 1}, {sizes}{dtype})"
    kind = "" if found.dtype == "float32" else f".to(torch.{found.dtype})"
    if found.std == 0:
        return f"torch.full({sizes}, {found.mean}){kind}"
    text = f"torch.randn({sizes})"
    text += "" if found.std == 1 else f".mul({found.std})"
    text += "" if found.mean == 0 else f".add({found.mean})"
    return f"{text}.clamp({found.low}, {found.high}){kind}"


def _mask(found: Sample) -> str:
    """Finite in the first column, so that no row hides everything."""
    sizes = repr(found.shape)
    values = _values(found, found.shape)
    if found.hidden == CAUSAL:
        hides = f"torch.ones({sizes}, dtype=torch.bool).triu(1)"
    else:
        hides = (
            f"(torch.rand({sizes}) < {found.hidden_share}).index_fill(-1, torch.tensor([0]), False)"
        )
    return f"{values}.masked_fill({hides}, float('-inf'))"
