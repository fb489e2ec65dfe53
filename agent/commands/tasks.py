"""`warpsmith tasks`: which problems there are, and which of them can be scored."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

import warpsmith
from agent.commands.options import Device, Json, Preset, Seconds
from agent.commands.output import answer, note, say

Spec = Annotated[str, typer.Argument(help="Such as builtin or kernelbench:PATH.")]


def list_tasks(spec: Spec = "builtin", device: Device = "auto", as_json: Json = False) -> None:
    """Every task that a spec names."""
    from kernelbench.suite import list_tasks
    from kernelbench.suite_view import summary_lines

    found = list_tasks(spec, device)
    columns = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
    answer(found, as_json, lambda _: say(summary_lines(found, columns)))


def show_task(task: str, device: Device = "auto", as_json: Json = False) -> None:
    """One task: its sizes and its reference."""
    from kernelbench.suite import load_task
    from kernelbench.suite_view import task_lines

    found = load_task(task, device)
    answer(found, as_json, lambda _: say(task_lines(found)))


def validate(
    spec: Spec = "builtin",
    device: Device = "auto",
    preset: Preset = "quick",
    only: Annotated[list[str] | None, typer.Option(help="Ids such as softmax or 1?_*.")] = None,
    record: Annotated[
        Path | None, typer.Option("--json", help="JSON lines; the same command goes on with it.")
    ] = None,
    seconds: Seconds = None,
    compiled: Annotated[bool, typer.Option(help="Time torch.compile too: minutes a task.")] = False,
) -> None:
    """Which tasks can be scored, and why not; exits with 1 if some cannot or none was tried."""
    from agent.scoring import admit
    from agent.views.console import open_console
    from kernelbench.admission import admission_table, totals

    rows, left = admit(
        spec,
        only or (),
        device,
        preset,
        path=record,
        seconds=seconds,
        compiled=compiled,
        on_row=lambda row: note(f"{row.task_id}: {row.verdict} {row.reason}"),
        on_fault=lambda task, fault: note(f"{task.id}: our fault: {fault}"),
    )
    console = open_console()
    console.print(admission_table(rows, f"suite: {spec} · device: {device} · preset: {preset}"))
    console.print(totals(rows, left))
    if not rows or any(not row.verdict.scored for row in rows):
        raise typer.Exit(warpsmith.FAILED)
