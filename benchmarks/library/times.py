"""What the processes measured of one operator, without the rounds in which their core mattered."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.figures import Pair

HIDDEN = 0.85
"""Of a call, the launching thread's part up to which launching is hidden behind the device's work,
on either side: then the core's pace changes next to nothing. Of 132 processes on an H200, 118 with
less differed by 3 % at most for each of 22 operators, most by under 1 %, on cores up to twice as
slow as others; in the 14 with more, calls took up to 1.45 times as long."""
SLOW = 1.2
"""Where launching is never hidden: times the quickest pace that was seen, beyond which a round was
disturbed. The evaluator waits for its core, too (sandbox/judging/drift.py)."""
RUNS = ("reference", "again", "operator")
FEWEST = 0.5
"""Of a process's rounds that must be left, for it to count."""
Round = dict[str, float]


@dataclass(frozen=True)
class Process:
    """Medians over the rounds that were not disturbed."""

    reference_ms: float
    operator_ms: float
    reference_launch_ms: float
    operator_launch_ms: float
    log_speedup: float
    log_null: float
    pace_us: float
    """Of all rounds."""
    rounds: int
    disturbed: int
    """Rounds that are not among them."""
    calls: int
    sets: int

    @property
    def pair(self) -> Pair:
        return Pair(self.reference_ms, self.operator_ms, self.log_speedup, self.rounds)

    @property
    def counts(self) -> bool:
        return self.rounds >= FEWEST * (self.rounds + self.disturbed)


def quickest_us(said: Sequence[dict[str, Any]]) -> float:
    """Of every round of these processes' words."""
    return min((r["pace_us"] for one in said for r in one["rounds"]), default=0.0)


def processes(said: Sequence[dict[str, Any]], quickest_us: float) -> list[Process]:
    """An operator's. Rounds count whose launching was hidden; where that leaves none of the
    processes, those on a core as quick as it can be.
    """
    found = [process(one, hidden) for one in said]
    if any(p.counts for p in found):
        return found
    return [process(one, lambda r: r["pace_us"] <= SLOW * quickest_us) for one in said]


def hidden(taken: Round) -> bool:
    return all(taken[f"{name}_launch_ms"] <= HIDDEN * taken[f"{name}_ms"] for name in RUNS)


def process(said: dict[str, Any], calm: Callable[[Round], bool]) -> Process:
    """Of one process's words; with fewer than FEWEST rounds left, of all its rounds."""
    left = [r for r in said["rounds"] if calm(r)]
    rounds = left if len(left) >= FEWEST * len(said["rounds"]) else said["rounds"]

    def median(name: str) -> float:
        return round(statistics.median(r[name] for r in rounds), 5)

    def log(name: str) -> float:
        return statistics.median(math.log(r["reference_ms"] / r[name]) for r in rounds)

    return Process(
        *(median("reference_ms"), median("operator_ms")),
        *(median("reference_launch_ms"), median("operator_launch_ms")),
        *(round(log("operator_ms"), 5), round(log("again_ms"), 5)),
        round(statistics.median(r["pace_us"] for r in said["rounds"]), 2),
        *(len(left), len(said["rounds"]) - len(left), said["calls"], said["sets"]),
    )
