"""Which problems of a data set: `level1`, `level1/19`, `level1/1-10,40` or `level1/19_ReLU`.

Nothing selected means levels 1 to 3. Level 4 is refused: its problems download Hugging Face models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from sandbox.errors import TaskError

LEVELS = (1, 2, 3)
FORM = "level1, level1/19, level1/1-10,40 or level1/19_ReLU"
T = TypeVar("T", bound="Entry")


@dataclass(frozen=True)
class Entry:
    """One problem's place in the data set."""

    level: int
    number: int
    name: str
    """With its number and without `.py`: `19_ReLU`."""

    @property
    def task_id(self) -> str:
        return f"kernelbench/level{self.level}/{self.name}"


@dataclass(frozen=True)
class Item:
    """One part of a selection: an inclusive range of numbers, or a problem's full name."""

    first: int
    last: int
    name: str | None = None

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise TaskError(f"range {self} is empty; expected the lower number first")

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def admits(self, entry: Entry) -> bool:
        return self.first <= entry.number <= self.last and self.name in (None, entry.name)


@dataclass(frozen=True)
class Selection:
    level: int | None = None
    """None for all of LEVELS."""
    items: tuple[Item, ...] = ()
    """Empty for the whole level."""

    def __post_init__(self) -> None:
        if self.level == 4:
            raise TaskError(
                "level4 needs Hugging Face models and the network; levels 1 to 3 are supported"
            )
        if self.level is not None and self.level not in LEVELS:
            raise TaskError(f"level{self.level} does not exist; expected level1, level2 or level3")

    def __str__(self) -> str:
        if self.level is None:
            return ""
        items = ",".join(map(str, self.items))
        return f"level{self.level}/{items}" if items else f"level{self.level}"

    @property
    def levels(self) -> tuple[int, ...]:
        return LEVELS if self.level is None else (self.level,)

    def pick(self, entries: Iterable[T], origin: str) -> list[T]:
        """Selected entries in order; TaskError where any part of the selection finds none."""
        ordered = sorted(entries, key=lambda e: (e.level, e.number, e.name))
        inside = [e for e in ordered if e.level in self.levels]
        for item in self.items:
            if not any(item.admits(e) for e in inside):
                has = f"{inside[0].name} to {inside[-1].name}" if inside else "no problems"
                raise TaskError(f"{origin}: level{self.level} has no {item}; it has {has}")
        if not inside:
            raise TaskError(f"{origin}: no problems of {self if self.level else 'levels 1 to 3'}")
        return [e for e in inside if not self.items or any(i.admits(e) for i in self.items)]


def parse_selection(text: str) -> Selection:
    """Raises TaskError where the text is not of a form above; empty text selects everything."""
    if not text:
        return Selection()
    match = re.fullmatch(r"level(\d{1,3})(?:/(.+))?", text, flags=re.ASCII)
    if match is None:
        raise TaskError(f"selection {text!r} is not understood; expected {FORM}")
    level, items = int(match[1]), match[2]
    return Selection(level, tuple(map(_item, items.split(","))) if items else ())


def _item(text: str) -> Item:
    numbers = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text, flags=re.ASCII)
    if numbers is not None:
        return Item(int(numbers[1]), int(numbers[2] or numbers[1]))
    named = re.fullmatch(r"(\d{1,6})_[^/,]+", text, flags=re.ASCII)
    if named is None:
        raise TaskError(f"selection item {text!r} is not understood; expected {FORM}")
    name = text.removesuffix(".py")
    return Item(int(named[1]), int(named[1]), name)
