"""Everything that a bench can say, as plain values made from its records' scores.

Tasks taken at a smaller size, to fit memory, are other problems: they are in no figure but their
own summary, so that all others are what they are without them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelbench.metrics import Score, Summary, bootstrap, only_kind, summarise
from kernelbench.published_flaws import is_degenerate
from sandbox.evidence import Kind
from sandbox.figures import Baseline, Interval
from sandbox.words import number_of

EARLY = (
    "Failures and missing kernels count already, while what is right waits to be timed: until then "
    "the figures say too little of these kernels."
)


@dataclass(frozen=True)
class Standing:
    """What a baseline is worth: geometric mean against eager, its interval over tasks."""

    tasks: int
    """On which it ran."""
    failed: int
    speedup: Interval | None


@dataclass(frozen=True)
class Report:
    """Everything that a bench can say now."""

    about: Mapping[str, str]
    """Input, suite, preset, command, version of the suite: as the caller told it."""
    config_id: str
    environment: Mapping[str, str]
    tasks: int
    """Of the suite."""
    waiting: int
    """Tasks whose samples are not all evaluated yet; in no figure."""
    not_scored: Mapping[str, str]
    """Tasks whose reference cannot be scored, and why; in no figure."""
    left_out: tuple[str, ...]
    """A line for each part of the input or of the record that could not be used."""
    without_kernel: tuple[str, ...] = ()
    """Tasks that count as failures since no sample was handed in."""
    counted: tuple[str, ...] | None = None
    """Marks of the records that this is made of; None in what an earlier version wrote."""
    all: Summary | None = None
    sound: Summary | None = None
    """Without problems that a published list calls degenerate; None where that changes nothing."""
    kinds: Mapping[str, Summary] = field(default_factory=dict)
    """Over all tasks, where only kernels of this kind count and the others are 1.0."""
    parts: Mapping[str, Summary] = field(default_factory=dict)
    """By level, or suite, where there are several."""
    baselines: Mapping[str, Standing] = field(default_factory=dict)
    """By name, against eager."""
    scaled: Mapping[str, str] = field(default_factory=dict)
    """Tasks that had no room, and the size at which each was taken; in `scaled_figures` alone."""
    scaled_figures: Summary | None = None
    under_way: tuple[str, ...] = ()
    """Of the waiting tasks those that some samples are evaluated of: not always the first."""

    @property
    def scaled_note(self) -> str:
        """What a reader must know of the scaled tasks; empty where there are none."""
        if not self.scaled:
            return ""
        of = f"{len(self.scaled)} of {number_of(self.tasks, 'task')}"
        what = "taken at a smaller batch, for want of the device's memory"
        return f"Scaled: {of} {what}, and in no figure but their own."

    @property
    def partial(self) -> str:
        """What a reader must know before the figures; empty where every task is evaluated."""
        if not self.waiting:
            return ""
        of = f"{self.waiting} of {number_of(self.tasks, 'task')}"
        what = f"Partial: {of} not evaluated yet, and in no figure."
        return what if self.all is None else f"{what} {EARLY}"


def standings(by_task: Mapping[str, tuple[Baseline, ...]]) -> dict[str, Standing]:
    found: dict[str, list[Interval | None]] = {}
    for baseline in (b for timed in by_task.values() for b in timed):
        found.setdefault(baseline.name, []).append(baseline.speedup)
    worth = {}
    for name, speedups in found.items():
        logs = [math.log(s.value) for s in speedups if s is not None]
        mean = bootstrap(logs) if logs else None
        worth[name] = Standing(len(logs), len(speedups) - len(logs), mean)
    return worth


def summaries(
    counted: Sequence[str], scores: Sequence[Score]
) -> tuple[Summary | None, Summary | None, Mapping[str, Summary], Mapping[str, Summary]]:
    """Over all, without the degenerate ones where there are any, by kind, and by level."""
    if not counted:
        return None, None, {}, {}
    everything = summarise(counted, scores)
    sound = [task_id for task_id in counted if not is_degenerate(task_id)]
    differs = sound and len(sound) < len(counted)
    parts: dict[str, list[str]] = {}
    for task_id in counted:
        parts.setdefault(task_id.rpartition("/")[0], []).append(task_id)
    return (
        everything,
        summarise(sound, scores) if differs else None,
        {
            kind.value: summarise(counted, only_kind(scores, kind))
            for kind in Kind
            if kind.value in everything.kinds
        },
        {name: summarise(ids, scores) for name, ids in parts.items() if len(parts) > 1},
    )
