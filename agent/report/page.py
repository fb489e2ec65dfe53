"""What a report says, as plain values: made from a journal or a bench's records, drawn by render.

Nothing here knows HTML. Ratios are speedups against eager unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sandbox.figures import Interval
from sandbox.words import number_of

SCHEMA_VERSION = 1
"""Of the data inside a page."""


class State(StrEnum):
    """What a task's colour says."""

    WIN = "win"
    """Faster than eager beyond noise: of a campaign, and confirmed."""
    APART = "apart"
    """The same, but by no custom kernel: a rewrite, flags, a graph wrapper."""
    CLAIM = "claim"
    """Of a campaign: faster by the search, not confirmed or not upheld."""
    EVEN = "even"
    """Correct, and no faster beyond noise."""
    FAILED = "failed"
    """No correct kernel."""
    UNTRIED = "untried"
    """Nothing was judged: the run, or its models' replies, ended before."""
    RUNNING = "running"
    LEFT_OUT = "left-out"
    """In no figure: the reference cannot be scored."""
    SCALED = "scaled"
    """In no figure but its own: of a bench, taken at a smaller batch, for want of memory."""


STATE_WORDS = {
    State.WIN: "win",
    State.APART: "win, not by a kernel",
    State.CLAIM: "faster, not confirmed",
    State.EVEN: "correct, no faster",
    State.FAILED: "no correct kernel",
    State.UNTRIED: "not tried",
    State.RUNNING: "under way",
    State.LEFT_OUT: "not scored",
    State.SCALED: "scaled to fit memory",
}


@dataclass(frozen=True)
class Tile:
    """One headline figure."""

    label: str
    value: str
    note: str = ""
    interval: Interval | None = None


@dataclass(frozen=True)
class Row:
    """One task of the table."""

    task_id: str
    state: State
    verdict: str
    reason: str = ""
    speedup: Interval | None = None
    against_best: float | None = None
    """Against the fastest of eager and the baselines."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """Each baseline's speedup against eager."""
    eager_ms: float | None = None
    best_ms: float | None = None
    tried: int = 0
    passed: int = 0
    language: str = ""
    kind: str = ""
    precision: str = ""
    doubts: int = 0
    roofline: float | None = None
    """Share of the memory roofline, where known."""

    @property
    def group(self) -> str:
        return self.task_id.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.task_id.rpartition("/")[2]


SHARE = "share"
"""As a curve's note: its values are from 0 to 1."""


@dataclass(frozen=True)
class Curve:
    """A line of a plot; `note` says over what, or that it is of a share."""

    name: str
    points: Sequence[tuple[float, float]]
    note: str = ""


@dataclass(frozen=True)
class Caught:
    """A candidate that cheated, or was right in the search and not when it was confirmed."""

    task_id: str
    candidate_id: str
    number: int | None
    """Among the task's candidates, where the page has them."""
    detail: str
    layers: tuple[str, ...] = ()
    late: bool = False
    """Only when it was confirmed, and by its values."""


@dataclass(frozen=True)
class Page:
    title: str
    kind: str
    """`campaign` or `bench`."""
    subtitle: tuple[str, ...]
    """Short facts: device, model, preset, date."""
    notices: tuple[str, ...]
    """What a reader must know before the figures: partial, transductive, left out."""
    tiles: tuple[Tile, ...]
    rows: tuple[Row, ...]
    fast: tuple[Curve, ...]
    """fast_p; the report's own curves first, then those to compare with."""
    fast_table: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By name of the curve, by p."""
    progress: Mapping[str, Curve] = field(default_factory=dict)
    """Best so far, by what is on the x axis."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage, summed over everything that ran side by side."""
    time_notes: tuple[str, ...] = ()
    training: tuple[Curve, ...] = ()
    """By the number of the update."""
    training_more: tuple[Curve, ...] = ()
    """What else the trainer recorded."""
    caught: tuple[Caught, ...] = ()
    subsets: tuple[tuple[str, ...], ...] = ()
    """Further summary rows: name, tasks, correct, vs eager, max(1, vs B*)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[tuple[str, str], ...] = ()
    """What each is for, and the command."""
    config: str = ""
    """YAML."""
    details: Sequence[str | None] = ()
    """Of each row what its task's view needs, packed (details.py): read only when it is opened."""
    footnotes: tuple[str, ...] = ()


def fast_curve(name: str, ratios: Sequence[float | None], note: str = "") -> Curve:
    """Share of all entries that are there and above p, as steps over p (Ouyang et al. 2025)."""
    known = sorted(ratio for ratio in ratios if ratio is not None)
    total = len(ratios)
    points = [(0.0, len(known) / total)] if total else []
    for number, ratio in enumerate(known, start=1):
        share = (len(known) - number) / total
        if points and points[-1][0] == ratio:
            points.pop()
        points.append((ratio, share))
    return Curve(name, points, note or number_of(total, "task"))


def thinned(points: Sequence[tuple[float, float]], most: int = 400) -> list[tuple[float, float]]:
    """At most about so many, first and last among them, evenly by place."""
    if len(points) <= most:
        return list(points)
    step = len(points) / most
    places = sorted({0, len(points) - 1, *(int(step * k) for k in range(most))})
    return [points[place] for place in places]


def counted(numbers: Iterable[tuple[int, str]]) -> str:
    """Such as `3 wins, 1 rewrite`; what there is none of is left out."""
    return ", ".join(f"{number} {word}" for number, word in numbers if number)
