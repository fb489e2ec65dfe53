"""A reward: named, weighted terms and their sum; no value where the fault is ours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    name: str
    weight: float
    value: float


@dataclass(frozen=True)
class Reward:
    value: float | None
    """None where the evaluation says nothing: SANDBOX_ERROR, INVALID_REFERENCE."""
    terms: tuple[Term, ...] = ()
