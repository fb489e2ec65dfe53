"""Two benches, task by task: is the difference more than noise, and which tasks make it?

The overall ratio's interval resamples tasks and adds each task's own measurement error, Student's t
of its few pairs, so that two runs of few tasks do not differ by chance. A task has changed where
its verdict has, or where its ratio stands out of both runs' errors at a false discovery rate of 5 %
(Benjamini and Hochberg 1995) and exceeds both noise floors. A task's error is the scatter of its
process pairs: the recorded interval keeps its level at every look, and of three pairs is six times
as wide. Only where a single pair, or a baseline's figure alone, is recorded is the interval taken
as if it were normal.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelbench.metrics import CONFIDENCE, RESAMPLES, SEED
from kernelbench.results import EVALUATIONS, REFERENCES, SUMMARY, Reference, Row, read_records
from sandbox.errors import ConfigError
from sandbox.figures import Baseline, Interval, Timing
from sandbox.judging.statistics import t_cdf
from sandbox.records import to_record
from sandbox.types import Evaluation, Language, Status
from sandbox.words import number_of

FALSE_DISCOVERIES = 0.05


@dataclass(frozen=True)
class Change:
    """One task that is not what it was."""

    task_id: str
    before: str
    """Speedup against eager with its interval, or the status."""
    after: str
    ratio: float
    """After over before, a failure being 1.0."""


@dataclass(frozen=True)
class Comparison:
    """Of B against A."""

    tasks: int
    ratio: Interval
    """Geometric mean over the tasks of both, a failure being 1.0."""
    changes: tuple[Change, ...]
    """The largest ratio first."""
    left_out: tuple[str, ...] = ()
    """One line each: why something was not compared, or makes the comparison doubtful."""
    scaled: int = 0
    """Tasks that both have at the same smaller batch, for want of memory."""

    @property
    def noise_only(self) -> bool:
        return not self.changes and self.ratio.low <= 1 <= self.ratio.high

    @property
    def verdict(self) -> str:
        """One line."""
        found = f"{self.ratio.value:.3f}x [{self.ratio.low:.3f}, {self.ratio.high:.3f}]"
        over = f"{found} over {number_of(self.tasks, 'task')}"
        over += f", {self.scaled} of them scaled to fit memory" if self.scaled else ""
        word = "faster" if self.ratio.value > 1 else "slower"
        if self.noise_only:
            return f"B differs from A only by noise: {over}"
        if self.ratio.low <= 1 <= self.ratio.high:
            return f"B is neither faster nor slower overall: {over}"
        return f"B is {word} than A: {over}"


def comparison_record(found: Comparison) -> dict[str, Any]:
    """JSON-ready, with the verdict."""
    return {**to_record(found), "verdict": found.verdict}


@dataclass(frozen=True)
class Difference:
    """One task's two rows, with the log ratio and its standard error."""

    before: Row
    after: Row
    log_ratio: float
    error: float
    dof: int
    """Of the scatter that told the error; 0 where it is taken as normal."""
    p: float
    """Chance of so large a ratio by noise alone; 0 where the verdict changed."""


def read_bench(path: Path) -> tuple[list[Row], list[str]]:
    """The rows of a bench's folder, as its summary has them, or of a record, or one for each
    baseline where it had no kernels; raises ConfigError if it has none.
    """
    file = path / EVALUATIONS if path.is_dir() else path
    counts, broken = _counted(path)
    rows, complaints = read_records(file, Row)
    rows = [row for row in rows if counts(row)]
    complaints += broken
    if not rows and path.is_dir():
        references, bad = read_records(path / REFERENCES, Reference)
        timed = [found for found in references if counts(found)]
        rows = [_as_row(found, one) for found in timed for one in found.baselines]
        complaints += bad
    if not rows:
        raise ConfigError(f"{path}: no evaluations; expected a folder that `warpsmith bench` wrote")
    return rows, complaints


def _counted(folder: Path) -> tuple[Callable[[Row | Reference], bool], list[str]]:
    """Whether the summary is made of a record: others are of kernels, tasks, protocols or machines
    that the folder was used for before, or of tasks of which samples are left, perhaps the first.
    All are where no summary tells; a line says so where one is there that cannot be read.
    """
    file = folder / SUMMARY
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        marks, environment = set(summary["counted"]), dict(summary["environment"])
        under_way = set(summary.get("under_way", ()))
    except (FileNotFoundError, NotADirectoryError):
        return (lambda _: True), []
    except (OSError, ValueError, KeyError, TypeError):
        return (lambda _: True), [
            f"{file}: cannot be read, so every record of the folder is compared, older ones too; "
            "the same `warpsmith bench` again writes it anew"
        ]
    return (
        lambda record: (
            record.mark in marks
            and record.task_id not in under_way
            and dict(record.environment) == environment
        )
    ), []


def _as_row(found: Reference, baseline: Baseline) -> Row:
    """A baseline like a kernel; it was timed beside eager. Its noise floor is not recorded."""
    name, speedup, timing = f"{found.task_id}, {baseline.name}", baseline.speedup, None
    if speedup is not None and baseline.latency_ms is not None:
        eager_ms = baseline.latency_ms * speedup.value
        timing = Timing(eager_ms, baseline.latency_ms, speedup, 0.0, (), 0)
    status = Status.RUNTIME_ERROR if timing is None else Status.PASSED
    evaluation = Evaluation(name, baseline.name, found.config_id, status, timing=timing)
    place = (name, found.task_hash, 0, Language.TORCH, REFERENCES)
    return Row(*place, found.environment, evaluation, found.scaled)


def compare(before: Sequence[Row], after: Sequence[Row]) -> Comparison:
    """Over tasks of equal text that both have scored; raises ConfigError where there are none."""
    first, second = _first_samples(before), _first_samples(after)
    notes = [f"{task}: only in {'A' if task in first else 'B'}" for task in first ^ second.keys()]
    found = []
    for task_id in [task for task in first if task in second]:
        one, other = first[task_id], second[task_id]
        if one.task_hash != other.task_hash and one.scaled != other.scaled:
            size, other_size = (str(row.scaled or "full size") for row in (one, other))
            notes.append(f"{task_id}: at {size} in A, at {other_size} in B")
        elif one.task_hash != other.task_hash:
            notes.append(f"{task_id}: its text, device, dtype or shapes differ between A and B")
        elif not (one.evaluation.status.scored and other.evaluation.status.scored):
            notes.append(f"{task_id}: not scored in A or in B")
        else:
            found.append(_difference(one, other))
    if not found:
        raise ConfigError("A and B have no scored task in common; expected benches of one suite")
    taught = [
        sorted({row.taught for row in rows} - {""}) for rows in zip(*map(_both, found), strict=True)
    ]
    if bool(taught[0]) is not bool(taught[1]):
        side, [name, *_] = ("A", taught[0]) if taught[0] else ("B", taught[1])
        raise ConfigError(
            f"{side} has kernels of {name}, which was taught evaluated tasks, and the other has "
            "none of such a policy; expected both of one kind"
        )
    for what, values in (
        ("protocols", {d.evaluation.config_id for r in found for d in (r.before, r.after)}),
        ("environments", {str(sorted(d.environment.items())) for r in found for d in _both(r)}),
    ):
        if len(values) > 1:
            notes.append(f"the {what} of A and B differ: a ratio may come from there alone")
    scaled = sum(r.before.scaled is not None for r in found)
    changes, lines = tuple(_changes(found)), tuple(sorted(notes))
    return Comparison(len(found), _overall(found), changes, lines, scaled)


def _both(found: Difference) -> tuple[Row, Row]:
    return found.before, found.after


def _first_samples(rows: Iterable[Row]) -> dict[str, Row]:
    """Lowest sample of each task; of several evaluations of it the last."""
    first: dict[str, Row] = {}
    for row in rows:
        if row.task_id not in first or row.sample <= first[row.task_id].sample:
            first[row.task_id] = row
    return first


def _difference(before: Row, after: Row) -> Difference:
    (one, one_error), (other, other_error) = _log_speedup(before), _log_speedup(after)
    ratio, error = other - one, math.hypot(one_error, other_error)
    timings = [t for t in (before.evaluation.timing, after.evaluation.timing) if t is not None]
    dof = sum(max(0, len(t.pairs) - 1) for t in timings)
    if before.evaluation.status is not after.evaluation.status:
        return Difference(before, after, ratio, error, dof, p=0.0)
    beyond = error > 0 and abs(ratio) > max((t.noise_floor for t in timings), default=0.0)
    p = _chance(abs(ratio) / error, dof) if beyond else 1.0
    return Difference(before, after, ratio, error, dof, p)


def _chance(errors: float, dof: int) -> float:
    """Of a ratio so many errors off, by noise; where no scatter told the error it is normal."""
    below = t_cdf(errors, dof) if dof else statistics.NormalDist().cdf(errors)
    return 2 * (1 - below)


def _log_speedup(row: Row) -> tuple[float, float]:
    """Log of the speedup and its standard error; zero for a failure."""
    speedup, timing = row.evaluation.speedup, row.evaluation.timing
    if speedup is None or timing is None:
        return 0.0, 0.0
    if len(timing.pairs) > 1:
        deviation = statistics.stdev(pair.log_speedup for pair in timing.pairs)
        return math.log(speedup.value), deviation / math.sqrt(len(timing.pairs))
    quantile = statistics.NormalDist().inv_cdf(0.5 + speedup.confidence / 2)
    return math.log(speedup.value), math.log(speedup.high / speedup.low) / 2 / quantile


def _overall(found: Sequence[Difference]) -> Interval:
    logs = np.array([d.log_ratio for d in found])
    errors = np.array([d.error for d in found])
    random = np.random.default_rng(SEED)
    draws = random.integers(0, len(logs), (RESAMPLES, len(logs)))
    dofs = np.array([d.dof for d in found])[draws]
    normal, scatter = random.standard_normal(draws.shape), random.standard_t(np.maximum(dofs, 1))
    noise = np.where(dofs > 0, scatter, normal) * errors[draws]
    means = (logs[draws] + noise).mean(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(x) for x in np.quantile(means, (tail, 1 - tail)))
    middle = float(logs.mean())
    bounds = min(low, middle), middle, max(high, middle)
    low, middle, high = (math.exp(x) for x in bounds)
    return Interval(middle, low, high, CONFIDENCE)


def _changes(found: Sequence[Difference]) -> list[Change]:
    """Those that hold at the false discovery rate over all tasks."""
    ordered = sorted(found, key=lambda d: d.p)
    holding = [
        rank
        for rank, each in enumerate(ordered, start=1)
        if each.p <= FALSE_DISCOVERIES * rank / len(ordered)
    ]
    changed = ordered[: max(holding, default=0)]
    changes = [
        Change(d.before.task_id, _word(d.before), _word(d.after), math.exp(d.log_ratio))
        for d in changed
    ]
    return sorted(changes, key=lambda c: -abs(math.log(c.ratio)))


def _word(row: Row) -> str:
    speedup = row.evaluation.speedup
    word = row.evaluation.status.value if speedup is None else str(speedup)
    return word if row.scaled is None else f"{word} at {row.scaled}"
