"""What an Evaluation says of time: charged times, speedups and their intervals. Standard library
only.

How they are made of rounds is in sandbox/judging/statistics.py, and what they may be believed for
in docs/measuring.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A positive ratio (a speedup) with its confidence interval; 1.0 means equal."""

    value: float
    low: float
    high: float
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.value <= self.high and math.isfinite(self.high)):
            raise ValueError(
                f"not an interval of ratios: {self.low} <= {self.value} <= {self.high}"
            )

    def __str__(self) -> str:
        return f"{self.value:.2f}x [{self.low:.2f}, {self.high:.2f}]"

    def divided_by(self, other: Interval) -> Interval:
        """The ratio of two independent ratios; half-widths in log space add in quadrature."""
        value = self.value / other.value
        down = math.hypot(math.log(self.value / self.low), math.log(other.high / other.value))
        up = math.hypot(math.log(self.high / self.value), math.log(other.value / other.low))
        return Interval(value, value * math.exp(-down), value * math.exp(up), self.confidence)


@dataclass(frozen=True)
class Pair:
    """One fresh process pair: medians over its rounds."""

    reference_ms: float
    candidate_ms: float
    log_speedup: float
    rounds: int
    voided: int = 0
    spread: float = 0.0
    """Standard deviation of its rounds' log ratios."""


@dataclass(frozen=True)
class Timing:
    """Charged time per model call (docs/measuring.md), candidate against eager reference."""

    reference_ms: float
    candidate_ms: float
    speedup: Interval
    noise_floor: float
    """Half-width of the null experiment (reference against itself), in log speedup."""
    pairs: tuple[Pair, ...]
    sets: int
    """Distinct input sets per batch."""
    floor_ms: float | None = None
    """Compulsory bytes over measured bandwidth."""

    @property
    def faster(self) -> bool:
        """Faster than eager beyond the interval and the task's noise floor."""
        return self.speedup.low > 1 and math.log(self.speedup.value) > self.noise_floor

    @property
    def win(self) -> bool:
        """Faster, on at least three process pairs: what may be reported."""
        return len(self.pairs) >= 3 and self.faster


@dataclass(frozen=True)
class Baseline:
    """Another way to run the reference, timed against eager by the same protocol."""

    name: str
    latency_ms: float | None
    speedup: Interval | None
    """Of the baseline against eager; None where it failed, and `detail` says why."""
    detail: str = ""
    logs: tuple[float, ...] = ()
    """The log speedup of each process pair; empty in older records."""
