"""What inputs can visibly be, by name; sandbox/checking/domain.py tells which it is."""

from __future__ import annotations

from enum import StrEnum


class Domain(StrEnum):
    REAL = "real"
    MASK = "mask"
    """0 and 1, -1 and 1, 0 and what is far below, or such whole numbers and booleans."""
    LABELS = "labels"
    """Whole numbers of which the model uses nothing else (sandbox/worker/labels.py)."""
    ORDERED = "ordered"
    """Along the last dimension, in all rows alike."""
    DISTRIBUTION = "distribution"
    """Rows that are not negative and sum to one."""
    LOG_DISTRIBUTION = "log distribution"
    DEFINITE = "positive definite"
    UNIFORM = "uniform"
    """The same value everywhere: a first state of zeros, a mask that masks nothing, weights of one.
    """

    @property
    def moved(self) -> bool:
        """It keeps its values, and only their places change."""
        return self in (Domain.MASK, Domain.LABELS)

    @property
    def apart(self) -> bool:
        """What it is hides from every change but the one that is made for it."""
        return self.moved or self is Domain.UNIFORM

    @property
    def alone(self) -> Domain:
        """What it is where no other input is data."""
        beside = (Domain.MASK, Domain.ORDERED, Domain.UNIFORM)
        return Domain.REAL if self in beside else self
