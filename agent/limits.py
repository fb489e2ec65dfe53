"""Numbers that must not be too small, refused in one form whoever gave them: a file, an option of
the command line, or a caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class FieldError(ValueError):
    """One field of a dataclass is wrong; its giver's name for it goes before `why`."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field} {why}")
        self.field, self.why = field, why


@dataclass(frozen=True)
class Least:
    value: int
    above: bool = False
    """The value itself is too small as well."""

    def __str__(self) -> str:
        return f"{'above' if self.above else 'at least'} {self.value}"

    def refuse(self, field: str, number: float | None) -> None:
        """Raises FieldError for a number that is too small, or none at all (NaN)."""
        if number is None or number > self.value or (number == self.value and not self.above):
            return
        shown = f"{number:g}" if isinstance(number, float) else str(number)
        raise FieldError(field, f"is {shown}; expected {self}")


ABOVE_0 = Least(0, above=True)


def refuse_too_small(config: object, least: Mapping[str, Least]) -> None:
    """Raises FieldError for the first of these fields that is too small; None is no number."""
    for field, bound in least.items():
        bound.refuse(field, getattr(config, field))
