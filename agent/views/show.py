"""`warpsmith show`: what a run has found so far, what it cost and where its time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agent.journals.journal import Journal
from agent.journals.outcome import TaskReport, reports
from agent.journals.spending import Spending, spending
from agent.journals.timings import timing_tables, timings
from agent.views.progress import report_record, show_reports


@dataclass(frozen=True)
class Overview:
    run: str
    tasks: tuple[TaskReport, ...]
    cost: Spending
    timings: Mapping[str, Any]
    """As `timings` of agent/journals/timings.py gives them."""


def read_overview(folder: Path) -> Overview:
    """Of a run's folder, while the run lives or later."""
    with Journal(folder, read_only=True) as journal:
        return Overview(folder.name, reports(journal), spending(journal), timings(journal))


def overview_record(found: Overview, *, with_timings: bool) -> dict[str, Any]:
    """JSON-ready."""
    record = {"run": found.run, "tasks": [report_record(task) for task in found.tasks]}
    return {**record, "timings": found.timings} if with_timings else record


def show_overview(console: Console, found: Overview, *, with_timings: bool) -> None:
    if not found.tasks:
        console.print(f"run {found.run} is empty: no task of it was begun", highlight=False)
        return
    devices = ", ".join(found.timings["devices"])
    show_reports(console, found.tasks, f"run: {found.run}" + (f" · {devices}" if devices else ""))
    for part in timing_tables(found.timings) if with_timings else ():
        console.print(part)
    console.print(str(found.cost), highlight=False, soft_wrap=True)
