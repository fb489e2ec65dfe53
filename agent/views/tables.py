"""A campaign as tables, while it runs and at its end: each wide, and narrow for less room.

No cell is cut. What a narrow table has no column for stands below the task, or, while the campaign
runs, is left to its end: there a task is one line, so that a screen holds more of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from agent.journals.outcome import Stage, TaskReport
from sandbox.figures import Interval

FIGURE_WIDTH = len("11.96x [10.22, 19.80]")
"""Kept free for a figure to come: a table must not change its form when it does."""


def live_table(reports: Sequence[TaskReport], title: str, *, narrow: bool = False) -> Table:
    """Where each task stands, and its best so far."""
    table = Table(title=title, title_justify="left", expand=True)
    names = ("task", "stage", "tried", "best vs eager", "vs compile", "time left")
    for name in names[:4] if narrow else names:
        table.add_column(
            name,
            overflow="fold",
            justify="right" if name == "tried" else "left",
            min_width=FIGURE_WIDTH if "vs" in name and not narrow else None,
        )
    for report in reports:
        cells = (
            report.task_id,
            report.stage.value,
            f"{report.tried}/{report.budget}",
            interval_text(report.speedup),
            interval_text(report.against_compile),
            time_left(report),
        )
        table.add_row(*cells[: len(table.columns)])
    return table


def final_table(reports: Sequence[TaskReport], title: str = "", *, narrow: bool = False) -> Table:
    """What a campaign found; tasks nobody could work on are listed by `leftovers`."""
    table = Table(title=title, title_justify="left")
    wide = ("task", "tried", "best kernel", "vs eager", "vs torch.compile", "verdict")
    for name in ("task", "vs eager", "vs compile", "verdict") if narrow else wide:
        justify: JustifyMethod = "right" if name == "tried" else "left"
        table.add_column(name, overflow="fold", justify=justify)
    for report in reports:
        if report.stage in (Stage.UNSUPPORTED, Stage.INVALID):
            continue
        tried, kernel = str(report.tried), kernel_name(report)
        figures = (interval_text(report.speedup), interval_text(report.against_compile))
        if narrow:
            below = f"\n{tried} tried, best {kernel}" if report.tried else ""
            verdict = report.verdict.replace(" (", "\n(")
            table.add_row(report.task_id + below, *map(_broken, figures), verdict)
        else:
            table.add_row(report.task_id, tried, kernel, *figures, report.verdict)
    return table


def interval_text(interval: Interval | None) -> Text:
    """Green where the whole interval is above 1."""
    if interval is None:
        return Text("-")
    return Text(str(interval), style="green" if interval.low > 1 else "")


def time_left(report: TaskReport) -> str:
    """By the mean cost of this task's candidates so far."""
    if report.stage.final or report.mean_seconds is None:
        return "-"
    return f"~{(report.budget - report.tried) * report.mean_seconds:.0f} s"


def kernel_name(report: TaskReport) -> str:
    if report.best is None:
        return "-"
    candidate = report.best.proposal.candidate
    return f"{candidate.id[:8]} {candidate.language.value}"


def _broken(figure: Text) -> Text:
    """The value above its interval."""
    return Text(figure.plain.replace(" [", "\n["), style=figure.style)
