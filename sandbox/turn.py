"""One side's part of a round: its calls by "go", and what their times come to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One side's part of a round."""

    seconds: float
    """From "go" to "done"."""
    collect_s: float
    pace: float = 1.0
    """Of the launching core, right after a batch."""


def goes(sets: list[int], single: bool) -> list[list[int]]:
    """The sets of every "go" of a round."""
    return [[index] for index in sets] if single else [sets]


def together(spent: list[float]) -> float:
    """Seconds of a round's "go"s, all as long as the quickest: on a busy machine a thread may wake
    milliseconds late for a lone call, while none of them is quicker than the work it has to do.
    """
    return min(spent) * len(spent)


def span(sets: list[int]) -> tuple[int, int]:
    """(first, count) of consecutive sets in any order."""
    return min(sets), len(sets)
