"""What is spent on which task: where headroom is left, and when a task is done. Pure.

Headroom is the log of the best candidate's time over the task's roofline floor. With `spend:
headroom` every task first gets `first_share` of its even share of the campaign's candidates. When
all of them have used it up, waves of `wave` tasks get one round more each, those of the highest
headroom / (rounds granted + 1) first: D'Hondt's highest averages (Balinski & Young 1982, "Fair
Representation", appendix A), which spends in proportion to headroom whenever it is stopped. Waves
are decided together and written down, so that neither the engine's speed nor a kill changes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.confirm import best_of, lower_bound, refuted
from agent.journals.recorded import Recorded
from agent.types import Measured

GRANTED = "granted"
"""Kind of the journal's event for a wave; its detail maps task ids to candidates."""
UNKNOWN_HEADROOM = math.log(2)
"""Of a task without a roofline floor: as much as one that runs at half of it."""
GAIN = math.log(1.02)
"""In log-speedup: below it a round was fruitless (twice the usual noise of a search's figure)."""


@dataclass(frozen=True)
class Allocation:
    spend: Literal["even", "headroom"] = "headroom"
    """Headroom shares `max_candidates`; without that cap there is nothing to share."""
    first_share: float = 0.5
    """Of its even share, that every task gets before any is preferred."""
    wave: int = 4
    """Tasks that get a further round at once."""
    stop_at_roofline: float | None = 0.9
    """Share of the roofline from which a task is done."""
    patience: int | None = 4
    """Fruitless rounds in a row that end a task."""

    def __post_init__(self) -> None:
        if not 0 < self.first_share <= 1 or self.wave < 1:
            raise ValueError("expected first_share above 0 and up to 1, wave of at least 1")
        if self.stop_at_roofline is not None and not 0 < self.stop_at_roofline <= 1:
            raise ValueError(f"stop_at_roofline is {self.stop_at_roofline}; expected 0..1")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is {self.patience}; expected 1 or more")

    def ended(self, records: Sequence[Recorded]) -> str:
        """Why nothing more is worth spending on a task; empty while something is."""
        share = roofline_share(records)
        if share is not None and share >= (self.stop_at_roofline or math.inf):
            return f"at {100 * share:.0f} % of the roofline"
        if self.patience is not None and fruitless_rounds(records) >= self.patience:
            return f"no gain in {self.patience} rounds"
        return ""


@dataclass(frozen=True)
class Standing:
    """One task that may get another round."""

    task_id: str
    headroom: float
    granted: int
    """Rounds, so far."""
    room: int
    """Candidates that its own cap leaves."""


def next_wave(standings: Sequence[Standing], left: int, each: int, wave: int) -> dict[str, int]:
    """Candidates by task, the most deserving first; empty where nothing is left to give."""
    able = [s for s in standings if s.room > 0 and s.headroom > 0]
    order = sorted(able, key=lambda s: -s.headroom / (s.granted + 1))
    grants: dict[str, int] = {}
    for standing in order[:wave]:
        count = min(each, standing.room, left - sum(grants.values()))
        if count > 0:
            grants[standing.task_id] = count
    return grants


def read_grants(details: Iterable[str]) -> dict[str, list[int]]:
    """What waves have granted to each task, oldest first, from the journal's events."""
    found: dict[str, list[int]] = {}
    for detail in details:
        for task_id, count in json.loads(detail).items():
            found.setdefault(task_id, []).append(int(count))
    return found


def write_grants(grants: Mapping[str, int]) -> str:
    return json.dumps(dict(grants), sort_keys=True)


def headroom(records: Sequence[Recorded], measured: Measured | None) -> float:
    """Log of how many times faster the roofline allows the task's best, or else eager, to be."""
    share = roofline_share(records)
    if share is not None:
        return max(0.0, -math.log(share))
    if measured is None or not measured.floor_ms or not measured.eager_ms:
        return UNKNOWN_HEADROOM
    return max(0.0, math.log(measured.eager_ms / measured.floor_ms))


def roofline_share(records: Sequence[Recorded]) -> float | None:
    """Of the best candidate that nothing refuted: floor over time, where the floor is known."""
    best = best_of([record for record in records if not refuted(record)])
    timing = None if best is None or best.evaluation is None else best.evaluation.timing
    if timing is None or not timing.floor_ms:
        return None
    return timing.floor_ms / timing.candidate_ms


def fruitless_rounds(records: Sequence[Recorded]) -> int:
    """Rounds since the best last grew by 2 %; the first correct candidate is fruit too."""
    count, best = 0, -math.inf
    for round in sorted({record.round for record in records}):
        mine = [r for r in records if r.round == round and not refuted(r)]
        speeds = [lower_bound(r) for r in mine if r.evaluation is not None and r.evaluation.passed]
        top = max((math.log(speed) for speed in speeds if speed > 0), default=-math.inf)
        count = 0 if top > best + GAIN else count + 1
        best = max(best, top)
    return count
