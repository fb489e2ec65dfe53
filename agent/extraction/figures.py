"""Figures of a captured tensor, and of the same tensor over several occurrences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

DIGITS = 4
CAUSAL, RANDOM_MASK = "causal", "random"


@dataclass(frozen=True)
class Sample:
    """Figures of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    mean: float
    std: float
    low: float
    high: float
    """Of the finite elements."""
    hidden: str | None = None
    """How -inf is spread over a mask: `causal` or `random`."""
    hidden_share: float = 0.0

    @property
    def floating(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def signature(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        return self.dtype, self.shape, self.stride

    def __str__(self) -> str:
        sizes = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.dtype == "bool":
            return f"{sizes}, {self.mean:.0%} true"
        if not self.floating:
            return f"{sizes}, {self.low:g} to {self.high:g}"
        masked = f", {self.hidden_share:.0%} -inf ({self.hidden})" if self.hidden else ""
        figures = f"mean {self.mean:g}, std {self.std:g}, {self.low:g} to {self.high:g}"
        return f"{sizes}, {figures}{masked}"


def pooled(found: Sequence[Sample]) -> Sample:
    """Of all elements of tensors with one signature, as if they were one tensor."""
    first = found[0]
    if all(other == first for other in found):
        return first
    weights = [1 - s.hidden_share for s in found]
    total = sum(weights)
    mean = sum(w * s.mean for w, s in zip(weights, found, strict=True)) / total
    square = sum(w * (s.std**2 + s.mean**2) for w, s in zip(weights, found, strict=True)) / total
    spreads = {s.hidden for s in found}
    hidden = first.hidden if len(spreads) == 1 else RANDOM_MASK
    return replace(
        first,
        mean=rounded(mean),
        std=rounded(math.sqrt(max(0.0, square - mean**2))),
        low=min(s.low for s in found),
        high=max(s.high for s in found),
        hidden=hidden,
        hidden_share=rounded(sum(s.hidden_share for s in found) / len(found)),
    )


def rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
