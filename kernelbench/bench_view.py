"""What a user sees of a bench and of a comparison: tables and lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelbench.bench import Figures
from kernelbench.bench_report import Report
from kernelbench.comparison import Comparison
from kernelbench.metrics import AT_LEAST_BEST, Summary, best_figure, figure
from kernelbench.results import SUMMARY, Reference, Row
from kernelbench.scaling import Scaling
from sandbox.errors import WarpsmithError
from sandbox.types import Task
from sandbox.words import number_of, shortened, visible

SHOWN_LINES = 20
"""Of what was left out, and the like."""
SHOWN = 80
"""Characters of why an evaluation failed, in a line of progress; its record has all."""
OVER_ALL = "headline: geometric mean over all tasks, a failure counting 1.0"
CORRECT_ONLY = "geometric mean over the correct tasks only, nothing clipped"
OVER_SCALED = "scaled to fit memory, apart: geometric mean, a failure counting 1.0"


def progress_line(row: Row, done: int, left: int, seconds: float) -> str:
    """One finished evaluation, and the time left by the mean cost so far."""
    found = row.evaluation
    figure = f"{found.speedup}" if found.speedup is not None else shortened(found.detail, SHOWN)
    rest = f"{left} left, about {seconds / done * left / 60:.0f} min" if left else "done"
    name = f"{row.task_id} sample {row.sample}{_at(row.scaled)}"
    return f"{name}: {found.status.value} {figure} ({rest})"


def _at(scaled: Scaling | None) -> str:
    return "" if scaled is None else f" at {scaled}"


def reference_line(found: Reference) -> str:
    """Latency of eager and what every baseline is worth."""
    eager = "not timed" if found.eager_ms is None else f"{found.eager_ms:.3g} ms"
    others = (f"{b.name} {b.speedup or b.detail[:60] or 'failed'}" for b in found.baselines)
    return ", ".join((f"eager {eager}", *others))


def prepared_line(found: Figures | WarpsmithError) -> str:
    """How long preparing took, the longest stages first; or why it came to nothing."""
    if isinstance(found, WarpsmithError):
        return str(found)
    if not found.seconds:
        return "known"
    stages = sorted(found.seconds.items(), key=lambda item: -item[1])
    longest = ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages[:4])
    return f"prepared in {sum(found.seconds.values()):.1f} s ({longest})"


class Progress:
    """What a bench tells: a line each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._began_s, self._done = say, time.monotonic(), 0

    def row(self, row: Row, left: int) -> None:
        self._done += 1
        self._say(progress_line(row, self._done, left, time.monotonic() - self._began_s))

    def reference(self, found: Reference, left: int) -> None:
        name = f"{found.task_id}{_at(found.scaled)}"
        self._say(f"{name}: {found.detail or reference_line(found)} ({left} left)")

    def prepared(self, task: Task, found: Figures | WarpsmithError, left: int) -> None:
        self._say(f"{task.id}: {prepared_line(found)} ({left} more before kernels are timed)")

    def fault(self, name: str, why: str) -> None:
        self._say(f"{name}: not scored: {why}")


def report_view(report: Report) -> RenderableType:
    """The headline by subset, fast_p, pass@k and what is in no figure."""
    parts: list[RenderableType] = []
    title = " · ".join(f"{key}: {value}" for key, value in report.about.items() if value)
    if report.all is not None:
        parts += [*_headlines(report, report.all, title), _fast(report.all), *_lines(report.all)]
    if report.baselines:
        parts.append(_baselines(report))
    parts += _scaled(report)
    if report.partial:
        parts.append(Text(report.partial))
    not_scored = [f"not scored: {task_id}: {why}" for task_id, why in report.not_scored.items()]
    left_out = [f"left out: {line}" for line in report.left_out]
    lines = (*_first(not_scored, SUMMARY), *_first(left_out, SUMMARY))
    return Group(*parts, *map(Text, lines))


def _first(lines: Sequence[str], whole: str = "") -> list[str]:
    """As many as a screen shows, and how many more there are, with the file that has them."""
    more = len(lines) - SHOWN_LINES
    rest = ", ".join(filter(None, (f"and {more} more", whole and f"in {whole}")))
    return [visible(line) for line in (*lines[:SHOWN_LINES], *([rest] if more > 0 else []))]


def _headlines(report: Report, everything: Summary, title: str) -> list[RenderableType]:
    """Two tables that each fit a terminal: over all tasks, and over those that are correct."""
    subsets = {"all tasks": everything}
    if report.sound is not None:
        subsets["without degenerate problems"] = report.sound
    subsets |= report.parts
    subsets |= {f"only {kind}": summary for kind, summary in report.kinds.items()}
    correct = _table(CORRECT_ONLY, "over", "vs eager", "vs B*")
    for name, found in subsets.items():
        best = ", ".join(filter(None, (_ratio(found.conditional_best), found.best_left_out)))
        correct.add_row(name, _ratio(found.conditional), best)
    return [Text(title), _over_all(subsets, OVER_ALL), correct]


def _over_all(subsets: Mapping[str, Summary], title: str) -> Table:
    table = _table(title, "over", "correct", "vs eager", AT_LEAST_BEST)
    for name, found in subsets.items():
        table.add_row(
            name,
            f"{found.correct} of {found.tasks} ({found.correctness:.0%})",
            figure(found.headline, found.tasks),
            best_figure(found),
        )
    return table


def _scaled(report: Report) -> list[RenderableType]:
    """Of tasks that were not taken as the suite has them."""
    parts: list[RenderableType] = []
    if report.scaled_figures is not None:
        parts.append(_over_all({"scaled tasks": report.scaled_figures}, OVER_SCALED))
    if report.scaled:
        parts.append(Text(report.scaled_note))
    sizes = [f"scaled: {task_id}: {size}" for task_id, size in report.scaled.items()]
    return [*parts, *map(Text, _first(sizes, SUMMARY))]


def _table(title: str, first: str, *others: str) -> Table:
    """Names on the left, figures on the right; what does not fit is folded, never cut."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _baselines(report: Report) -> Table:
    table = _table("baselines: geometric mean against eager", "baseline", "tasks", "vs eager")
    for name, found in report.baselines.items():
        failed = f", {found.failed} failed" if found.failed else ""
        table.add_row(name, f"{found.tasks}{failed}", figure(found.speedup, found.tasks))
    return table


def _fast(summary: Summary) -> Table:
    names = (f"p = {p}" for p in summary.fast)
    table = _table("fast_p: tasks correct and more than p times as fast", "against", *names)
    table.add_row("eager", *(f"{share:.3f}" for share in summary.fast.values()))
    if summary.fast_best is not None:
        name = ", ".join(filter(None, ("B*", summary.best_left_out)))
        table.add_row(name, *(f"{share:.3f}" for share in summary.fast_best.values()))
    return table


def _lines(summary: Summary) -> list[RenderableType]:
    lines = []
    if len(summary.pass_at) > 1:
        shares = (
            f"pass@{k} {s.value:.3f} ({number_of(s.tasks, 'task')})"
            for k, s in summary.pass_at.items()
        )
        lines.append(", ".join(shares))
    if summary.without_kernel:
        without = number_of(summary.without_kernel, "task")
        lines.append(f"{without} without a kernel, which counts as a failure")
    if summary.best_left_out:
        without = number_of(summary.without_best, "task")
        lines.append(f"{without} without a timed baseline, in no figure against B*")
    if summary.precisions:
        classes = (f"{count} {name}" for name, count in summary.precisions.items())
        lines.append(f"precision of what passed: {', '.join(classes)}")
    if summary.roofline is not None:
        lines.append(f"roofline: {summary.roofline:.0%} of the floor's bandwidth, median")
    if summary.memory is not None:
        lines.append(f"peak memory: {summary.memory:.2f}x the reference's, geometric mean")
    return [Text(line) for line in lines]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def comparison_view(found: Comparison) -> RenderableType:
    """The verdict, then the tasks that changed."""
    parts: list[RenderableType] = [Text(found.verdict)]
    if found.changes:
        table = Table(
            title=f"changed: {number_of(len(found.changes), 'task')}", title_justify="left"
        )
        for name in ("task", "A", "B", "B / A"):
            table.add_column(name, overflow="fold")
        for change in found.changes:
            table.add_row(change.task_id, change.before, change.after, f"{change.ratio:.3f}")
        parts.append(table)
    notes = _first([f"note: {line}" for line in found.left_out])
    return Group(*parts, *map(Text, notes))
