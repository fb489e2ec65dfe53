"""One side's part of a round: its calls by "go", and what their times come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sandbox.machine.rest import Afterwards


@dataclass(frozen=True)
class Turn:
    """One side's part of a round."""

    spent: tuple[float, ...]
    """Seconds from "go" to "done", by "go"."""
    collects: tuple[float, ...]
    """Of handing outputs over, likewise."""
    pace: float
    """Of the launching core, right after a batch."""
    left_s: float
    """Behind a batch's "done" on a GPU: what takes longer while it is busy."""

    @property
    def seconds(self) -> float:
        return together(self.spent)

    @property
    def collect_s(self) -> float:
        return sum(self.collects)

    def told(self, seconds: float) -> Turn:
        """With what telling its updates took, which is handed over like outputs: who updates only
        when it is looked at pays then.
        """
        return replace(self, collects=(*self.collects, seconds))

    def beside(self, reference: Turn) -> Turn:
        """Of lone calls: what handing an output over takes beyond what is usual of the reference's
        is part of its call. Else the one that leaves its work for then would be the quickest, and
        count for all. Of an honest candidate half the calls are left as they are, and the quickest
        counts; the slowest of the reference's left room for 0.1 ms (H100).
        """
        usual = statistics.median(reference.collects)
        calls = zip(self.spent, self.collects, strict=True)
        return replace(
            self,
            spent=tuple(spent + max(0.0, collect - usual) for spent, collect in calls),
            collects=tuple(min(collect, usual) for collect in self.collects),
        )


@dataclass
class Progress:
    """A turn that is under way, "go" after "go"."""

    spent: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)
    collects: list[float] = field(default_factory=list)
    left_s: float = 0.0

    def collected(self, seconds: float, after: Afterwards) -> None:
        """A "go"'s outputs are handed over, which took so long by itself."""
        self.collects.append(seconds)
        self.left_s += after.left_s

    def over(self) -> Turn:
        pace = statistics.median(self.paces)
        return Turn(tuple(self.spent), tuple(self.collects), pace, self.left_s)


def goes(sets: list[int], single: bool) -> list[list[int]]:
    """The sets of every "go" of a round."""
    return [[index] for index in sets] if single else [sets]


def together(spent: Sequence[float]) -> float:
    """Seconds of a round's "go"s, all as long as the quickest: on a busy machine a thread may wake
    milliseconds late for a lone call, while none of them is quicker than the work it has to do.
    """
    return min(spent) * len(spent)


def span(sets: list[int]) -> tuple[int, int]:
    """(first, count) of consecutive sets in any order, some perhaps more than once."""
    return min(sets), max(sets) - min(sets) + 1
