"""One side's part of a round: its calls by "go", and what their times come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sandbox.rest import Afterwards


@dataclass(frozen=True)
class Turn:
    """One side's part of a round."""

    seconds: float
    """From "go" to "done"."""
    collect_s: float
    """Of handing outputs over."""
    pace: float = 1.0
    """Of the launching core, right after a batch."""
    left_s: float = 0.0
    """Behind a batch's "done" on a GPU: what takes longer while it is busy."""
    spent: tuple[float, ...] = ()
    collects: tuple[float, ...] = ()
    """Both by "go"."""

    def beside(self, reference: Turn) -> Turn:
        """Of lone calls: what handing an output over takes beyond the slowest of the reference's is
        part of its call. Else the one that leaves its work for then would be the quickest, and
        count for all.
        """
        longest = max(reference.collects)
        late = [max(0.0, seconds - longest) for seconds in self.collects]
        whole = [a + b for a, b in zip(self.spent, late, strict=True)]
        return replace(self, seconds=together(whole), collect_s=self.collect_s - sum(late))


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
        return Turn(
            together(self.spent),
            sum(self.collects),
            statistics.median(self.paces),
            self.left_s,
            tuple(self.spent),
            tuple(self.collects),
        )


def goes(sets: list[int], single: bool) -> list[list[int]]:
    """The sets of every "go" of a round."""
    return [[index] for index in sets] if single else [sets]


def together(spent: Sequence[float]) -> float:
    """Seconds of a round's "go"s, all as long as the quickest: on a busy machine a thread may wake
    milliseconds late for a lone call, while none of them is quicker than the work it has to do.
    """
    return min(spent) * len(spent)


def span(sets: list[int]) -> tuple[int, int]:
    """(first, count) of consecutive sets in any order."""
    return min(sets), len(sets)
