"""What a campaign had found by then: curves over what it had spent, and over a policy's updates."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from agent.journals.timings import evaluations, held_seconds
from agent.learner import LEARN
from agent.report.page import SHARE, Curve, thinned
from sandbox.words import number_of

TELLING = {
    "reward": "mean reward",
    "correct": "right replies",
    "speedup_correct": "speedup of right replies",
    "hacks": "reward hacks",
    "unscored": "replies without a verdict",
    "distinct": "distinct replies",
    "equal_groups": "groups that teach nothing",
    "group_variance": "variance of rewards in a group",
    "trl/entropy": "entropy of a token",
    "idle": "time waited for evaluations",
    "lag_s": "seconds from proposal to verdict",
    "age": "updates since the weights that wrote",
}
"""Of an update's figures those by which a reader sees how training goes, and what to call them."""
SHARES = frozenset(("correct", "hacks", "unscored", "distinct", "equal_groups", "idle"))
TERM = "term/"


@dataclass(frozen=True)
class Step:
    """One proposal, for what the run had found and spent by then."""

    id: int
    task: int
    judged: bool
    """Of a known candidate, or of one that is still to be judged, only its cost counts."""
    log_best: float
    """Of its task after it: log of the best speedup by the search, 0 below eager."""
    seconds: float
    usd: float
    tokens: int


def steps(number: int, records: Sequence[Recorded]) -> list[Step]:
    found, best, low = [], 0.0, 0.0
    for record in records:
        judged = record.evaluation is not None
        speedup = None if record.evaluation is None else record.evaluation.speedup
        if speedup is not None and speedup.low > low:
            low, best = speedup.low, max(0.0, math.log(speedup.value))
        held = sum(held_seconds(e) for e in evaluations([record]))
        usage = record.proposal.usage
        tokens = usage.prompt_tokens + usage.completion_tokens
        cost = usage.cost_usd or 0.0
        found.append(Step(record.id, number, judged, best, held, cost, tokens))
    return found


def progress(steps: Sequence[Step], tasks: int) -> dict[str, Curve]:
    """Geometric mean over tasks of the best so far, after every candidate, by what was spent."""
    known: dict[int, float] = {}
    sums: dict[str, float] = {}
    log_sum = 0.0
    curves: dict[str, list[tuple[float, float]]] = {}
    for step in sorted(steps, key=lambda s: s.id):
        log_sum += step.log_best - known.get(step.task, 0.0)
        known[step.task] = step.log_best
        spent = {"device seconds": step.seconds, "US$": step.usd, "tokens": float(step.tokens)}
        for name, value in {"candidates": float(step.judged), **spent}.items():
            sums[name] = sums.get(name, 0.0) + value
        for name, value in sums.items():
            curves.setdefault(name, []).append((value, math.exp(log_sum / tasks)))
    note = f"geometric mean over {number_of(tasks, 'task')} of the search's figures"
    return {
        name: Curve(name, thinned([(0.0, 1.0), *points]), note)
        for name, points in curves.items()
        if points[-1][0]
    }


def training(journal: Journal) -> tuple[tuple[Curve, ...], tuple[Curve, ...]]:
    """A curve for each figure that updates of a policy recorded: the telling ones with the terms of
    the reward, and the others.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    for number, lesson in enumerate(map(json.loads, journal.events(LEARN)), start=1):
        for name, value in lesson["figures"].items():
            if isinstance(value, int | float) and math.isfinite(value):
                curves.setdefault(name, []).append((float(number), float(value)))
    telling = [name for name in TELLING if name in curves]
    terms = [name for name in curves if name.startswith(TERM)]
    others = [name for name in curves if name not in (*telling, *terms)]

    def named(names: Sequence[str]) -> tuple[Curve, ...]:
        return tuple(
            Curve(
                TELLING.get(name, name.replace("_", " ").replace(TERM, "reward: ")),
                curves[name],
                SHARE if name in SHARES else "",
            )
            for name in names
        )

    return named([*telling, *terms]), named(others)
