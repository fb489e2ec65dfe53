"""Which problems of a data set: `level1`, `level1/19`, `level1/1-10,40`, `level1/19_ReLU`, or a
named subset of levels 1 to 3: `representative`, `sound`.

Nothing selected means levels 1 to 3. Level 4 is refused: its problems download Hugging Face models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from sandbox.errors import TaskError

LEVELS = (1, 2, 3)
FORM = "level1, level1/19, level1/1-10,40, level1/19_ReLU, representative or sound"
SUBSETS: Mapping[str, Mapping[int, frozenset[int]]] = {
    "representative": {
        1: frozenset({1, 3, 6, 18, 23, 26, 33, 36, 40, 42, 48, 54, 57, 65, 77, 82, 86, 87}),
        2: frozenset({1, 2, 8, 18, 23, 28, 33, 43}),
        3: frozenset({1, 5, 8, 11, 20, 21, 33, 38, 43}),
    },
    "sound": {
        1: frozenset({2, 25, 36, 42, 56, 61, 82, 91, 99}),
        2: frozenset({1, 5, 12, 28, 30, 37, 47, 60}),
        3: frozenset({1, 20, 43}),
    },
}
"""Numbers by level: KernelBench's own representative subset (its `get_representative_subset`),
some of whose problems are degenerate; and twenty, of every family, that no published list calls so.
"""
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
    subset: str = ""
    """One of SUBSETS; empty for no such."""

    def __post_init__(self) -> None:
        if self.level == 4:
            raise TaskError(
                "level4 needs Hugging Face models and the network; levels 1 to 3 are supported"
            )
        if self.level is not None and self.level not in LEVELS:
            raise TaskError(f"level{self.level} does not exist; expected level1, level2 or level3")

    def __str__(self) -> str:
        if self.level is None:
            return self.subset
        items = ",".join(map(str, self.items))
        return f"level{self.level}/{items}" if items else f"level{self.level}"

    @property
    def levels(self) -> tuple[int, ...]:
        return LEVELS if self.level is None else (self.level,)

    def pick(self, entries: Iterable[T], origin: str) -> list[T]:
        """Selected entries in order; TaskError where any part of the selection finds none, or two
        have one number, by which kernels name them.
        """
        ordered = sorted(entries, key=lambda e: (e.level, e.number, e.name))
        inside = [e for e in ordered if e.level in self.levels]
        for item in self.items:
            if not any(item.admits(e) for e in inside):
                has = f"{inside[0].name} to {inside[-1].name}" if inside else "no problems"
                raise TaskError(f"{origin}: level{self.level} has no {item}; it has {has}")
        if not inside:
            raise TaskError(f"{origin}: no problems of {self if self.level else 'levels 1 to 3'}")
        if self.subset:
            picked = self._named(inside, origin)
        else:
            picked = [e for e in inside if not self.items or any(i.admits(e) for i in self.items)]
        for one, other in pairwise(picked):
            if (one.level, one.number) == (other.level, other.number):
                what = f"level{one.level}/{one.number} is both {one.name} and {other.name}"
                raise TaskError(f"{origin}: {what}; expected one version of KernelBench")
        return picked

    def _named(self, inside: Sequence[T], origin: str) -> list[T]:
        places = {(level, n) for level, numbers in SUBSETS[self.subset].items() for n in numbers}
        missing = sorted(places - {(e.level, e.number) for e in inside})
        if missing:
            level, number = missing[0]
            raise TaskError(
                f"{origin}: {self.subset} has level{level}/{number}, which is not there"
            )
        return [e for e in inside if (e.level, e.number) in places]


def parse_selection(text: str) -> Selection:
    """Raises TaskError where the text is not of a form above; empty text selects everything."""
    if not text:
        return Selection()
    if text in SUBSETS:
        return Selection(subset=text)
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
