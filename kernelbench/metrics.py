"""What a set of kernels is worth on a set of tasks, by pure functions of its evaluations.

The headline is the geometric mean over *all* tasks, a failure or a missing kernel counting 1.0;
fast_p is the fraction of tasks correct and more than p times as fast (Ouyang et al. 2025, eq. 1);
pass@k is the unbiased estimator (Chen et al. 2021, eq. 1). A task with several samples is scored by
its first one, as KernelBench does: the best of several would be a lucky one. B* is the fastest of
eager and the baselines timed beside it, chosen on some process pairs and measured on others.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sandbox.evidence import Kind
from sandbox.figures import Interval
from sandbox.judging.best import best_baseline
from sandbox.types import Evaluation
from sandbox.words import number_of

AT_LEAST_BEST = "max(1, vs B*)"
"""What a screen and a page call `Summary.headline_best`: the faster of kernel and B* is kept."""
THRESHOLDS = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0)
"""KernelBench's, and 1.2."""
RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 20_250_214
"""Of the bootstrap: the same records give the same interval."""


@dataclass(frozen=True)
class Score:
    """One evaluation as the figures see it; only such whose status is scored."""

    task_id: str
    sample: int
    correct: bool
    speedup: float | None = None
    """Against eager; None unless correct and timed."""
    against_best: float | None = None
    """Against B*; None also where no baseline but eager was asked for, or every one failed."""
    kind: Kind | None = None
    precision: str | None = None
    """Class of the worst norm error."""
    roofline: float | None = None
    """Share: the floor over the candidate's latency, where the floor is known."""
    memory: float | None = None
    """Peak memory over the reference's, where both are known; None unless correct."""

    def __post_init__(self) -> None:
        if self.speedup is not None and not (self.correct and self.speedup > 0):
            raise ValueError(f"{self.task_id}: speedup {self.speedup} of a failure or not positive")


@dataclass(frozen=True)
class Share:
    """Of `tasks` the fraction `value`."""

    value: float
    tasks: int


@dataclass(frozen=True)
class Summary:
    """Every figure of one subset of tasks."""

    tasks: int
    """All that count: with a verdict, or without a kernel."""
    without_kernel: int
    correct: int
    headline: Interval
    """Geometric mean against eager over all tasks, with its per-task bootstrap interval."""
    headline_best: Interval | None
    """The same of max(1, speedup against B*), over the tasks but `without_best`; None where every
    timed task is such a one.
    """
    conditional: float | None
    """Geometric mean against eager over correct, timed tasks."""
    conditional_best: float | None
    """The same against B*: what is slower than B* counts as it is."""
    fast: Mapping[str, float]
    """By p, against eager."""
    fast_best: Mapping[str, float] | None
    """By p, against B*."""
    pass_at: Mapping[str, Share]
    """By k, over the tasks with at least k samples and those with none."""
    roofline: float | None
    """Median share over the tasks where the floor is known."""
    kinds: Mapping[str, int]
    """First samples that passed, by what makes them fast."""
    precisions: Mapping[str, int]
    """The same, by the class of their worst error."""
    memory: float | None = None
    """Geometric mean of the peak memory over the reference's, of correct first samples."""
    without_best: int = 0
    """Timed tasks of which no baseline was: in no figure against B*, which is not known there."""

    @property
    def correctness(self) -> float:
        return self.correct / self.tasks

    @property
    def best_left_out(self) -> str:
        """`1 task left out`, beside every figure against B*; empty where that is over all tasks."""
        if self.headline_best is None or not self.without_best:
            return ""
        return f"{number_of(self.without_best, 'task')} left out"


def score_of(task_id: str, sample: int, evaluation: Evaluation) -> Score:
    """What counts of an evaluation whose status is scored; raises ValueError for another."""
    if not evaluation.status.scored:
        raise ValueError(f"{task_id}: {evaluation.status} says nothing about a candidate")
    speedup = None if evaluation.speedup is None else evaluation.speedup.value
    timing = evaluation.timing
    roofline = None
    if speedup is not None and timing is not None and timing.floor_ms is not None:
        roofline = timing.floor_ms / timing.candidate_ms
    return Score(
        task_id,
        sample,
        evaluation.passed,
        speedup,
        None if speedup is None else _against_best(speedup, evaluation),
        evaluation.kind,
        evaluation.precision,
        roofline,
        _memory(evaluation),
    )


def _memory(evaluation: Evaluation) -> float | None:
    mine, other = evaluation.peak_bytes, evaluation.reference_peak_bytes
    return mine / other if evaluation.passed and mine and other else None


def _against_best(speedup: float, evaluation: Evaluation) -> float | None:
    if not any(b.speedup is not None for b in evaluation.baselines):
        return None
    _, best = best_baseline(evaluation.baselines)
    return speedup if best is None else speedup / best.value


def first_samples(scores: Iterable[Score]) -> dict[str, Score]:
    """Of each task the score with the lowest sample number."""
    first: dict[str, Score] = {}
    for score in scores:
        if score.task_id not in first or score.sample < first[score.task_id].sample:
            first[score.task_id] = score
    return first


def summarise(task_ids: Sequence[str], scores: Iterable[Score]) -> Summary:
    """Figures over exactly these tasks, at least one; one without a score counts as a failure."""
    if not task_ids:
        raise ValueError("no tasks; expected at least one")
    wanted = set(task_ids)
    mine = [score for score in scores if score.task_id in wanted]
    first = first_samples(mine)
    timed = [s for s in first.values() if s.speedup is not None]
    speedups = [first[t].speedup if t in first else None for t in task_ids]
    unknown = {s.task_id for s in timed if s.against_best is None}
    compared = [first[t].against_best if t in first else None for t in task_ids if t not in unknown]
    known = not timed or len(unknown) < len(timed)
    passed = [s for s in first.values() if s.correct]
    kinds = Counter(s.kind for s in passed)
    precisions = Counter(s.precision for s in passed)
    shares = [s.roofline for s in timed if s.roofline is not None]
    return Summary(
        tasks=len(task_ids),
        without_kernel=sum(t not in first for t in task_ids),
        correct=sum(s.correct for s in first.values()),
        headline=mean_over_all(speedups),
        headline_best=mean_over_all([max(1.0, b or 1.0) for b in compared]) if known else None,
        conditional=geometric_mean(speedups),
        conditional_best=geometric_mean(compared) if known else None,
        fast=fast_table(speedups),
        fast_best=fast_table(compared) if known else None,
        pass_at=pass_table(task_ids, mine),
        roofline=statistics.median(shares) if shares else None,
        memory=geometric_mean(s.memory for s in passed),
        without_best=len(unknown),
        kinds={kind.value: kinds[kind] for kind in Kind if kind in kinds},
        precisions={p: n for p, n in sorted(precisions.items(), key=str) if p is not None},
    )


def only_kind(scores: Iterable[Score], kind: Kind) -> list[Score]:
    """The same scores where only this kind's speedups count: the others are 1.0, as a failure."""
    return [
        s if s.kind is kind or not s.correct else Score(s.task_id, s.sample, correct=False)
        for s in scores
    ]


def geometric_mean(ratios: Iterable[float | None]) -> float | None:
    """Of those that are there; None without any."""
    logs = [math.log(ratio) for ratio in ratios if ratio is not None]
    return math.exp(statistics.fmean(logs)) if logs else None


def mean_over_all(ratios: Sequence[float | None]) -> Interval:
    """Geometric mean with what is missing as 1.0, and its bootstrap interval over the entries."""
    return bootstrap([0.0 if ratio is None else math.log(ratio) for ratio in ratios])


def figure(interval: Interval | None, tasks: int) -> str:
    """For a reader: of one task a bootstrap has no width, which says nothing about it."""
    if interval is None:
        return "-"
    return str(interval) if tasks > 1 else f"{interval.value:.2f}x"


def best_figure(summary: Summary) -> str:
    """The same of `headline_best`, with the tasks that it is without."""
    shown = figure(summary.headline_best, summary.tasks - summary.without_best)
    return f"{shown}, {left}" if (left := summary.best_left_out) else shown


def bootstrap(logs: Sequence[float]) -> Interval:
    """exp(mean) and its percentile interval under resampling of the entries, at least one."""
    values = np.asarray(logs, dtype=np.float64)
    draws = np.random.default_rng(SEED).integers(0, len(values), (RESAMPLES, len(values)))
    means = values[draws].mean(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(x) for x in np.quantile(means, (tail, 1 - tail)))
    middle = float(values.mean())
    return Interval(
        math.exp(middle),
        math.exp(min(low, middle)),
        math.exp(max(high, middle)),
        CONFIDENCE,
    )


def fast_p(ratios: Sequence[float | None], p: float) -> float:
    """Fraction of all entries that are there and above p."""
    return sum(ratio is not None and ratio > p for ratio in ratios) / len(ratios)


def fast_table(ratios: Sequence[float | None]) -> dict[str, float]:
    return {f"{p:g}": fast_p(ratios, p) for p in THRESHOLDS}


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that at least one of k samples, drawn without replacement, is correct.

    Raises ValueError unless 1 <= k <= samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples; expected k between 1 and {samples}")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def pass_table(task_ids: Sequence[str], scores: Sequence[Score]) -> dict[str, Share]:
    """For k of 1, 2, 4, ... and the largest number of samples; no samples at all are a failure."""
    counts: dict[str, list[bool]] = {task_id: [] for task_id in task_ids}
    for score in scores:
        counts[score.task_id].append(score.correct)
    most = max(map(len, counts.values()))
    ks = sorted({1, most, *(2**i for i in range(10) if 2**i <= most)} - {0})
    table = {}
    for k in ks:
        values = [
            pass_at_k(len(found), sum(found), k) if found else 0.0
            for found in counts.values()
            if not found or len(found) >= k
        ]
        if values:
            table[str(k)] = Share(statistics.fmean(values), len(values))
    return table
