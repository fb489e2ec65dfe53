"""A suite's admission: one row a task in a JSONL file that a later call goes on with, and a table.

A row counts for the task text, protocol and environment it was made with; another of them makes the
task new. A task whose validation failed through a fault of ours gets no row: the next call tries
it again.
"""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from rich.table import Table
from rich.text import Text

from sandbox.admission import SCHEMA_VERSION, Admission, Level, ShapeFigures
from sandbox.errors import ConfigError, SandboxFault
from sandbox.records import from_record, to_record
from sandbox.types import EvalConfig, Task
from sandbox.words import number_of

ROW_START = '{"task_id": '
"""Of every line, and so of one that was cut short."""
STYLES = {Level.DEGENERATE: "red", Level.INVALID: "red", Level.NOTED: "yellow", Level.SOUND: ""}


class Validator(Protocol):
    """What sandbox.evaluator.LocalEvaluator offers."""

    def validate(self, task: Task, config: EvalConfig, *, compiled: bool = False) -> Admission: ...


def choose(tasks: Sequence[Task], patterns: Sequence[str]) -> list[Task]:
    """Those whose id, or a last part of it, matches any shell pattern; all without patterns.

    Raises ConfigError for a pattern that matches nothing.
    """

    def matches(task: Task, pattern: str) -> bool:
        return fnmatch.fnmatch(task.id, pattern) or fnmatch.fnmatch(task.id, f"*/{pattern}")

    for pattern in patterns:
        if not any(matches(task, pattern) for task in tasks):
            raise ConfigError(f"--only {pattern}: no such task; the first is {tasks[0].id}")
    return [t for t in tasks if not patterns or any(matches(t, p) for p in patterns)]


def read_rows(path: Path) -> list[Admission]:
    """Rows of an earlier call; a last line that a kill cut short is dropped from the file.

    Raises ConfigError where the file is no admission record.
    """
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        rest = text[len(whole) :]
        if not (ROW_START.startswith(rest) or rest.startswith(ROW_START)):
            raise ValueError(f"the last line is {rest[:40]!r}")
        rows = [_row(json.loads(line)) for line in whole.splitlines() if line.strip()]
        if rest:
            path.write_text(whole, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read or written ({error.strerror})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: no record of `tasks validate`: {error}") from error
    return rows


def _row(record: object) -> Admission:
    if not isinstance(record, dict):
        raise ValueError(f"{record!r:.40} is no row")
    if record.get("schema_version") != SCHEMA_VERSION:
        expected = f"expected {SCHEMA_VERSION}"
        raise ValueError(f"schema version is {record.get('schema_version')}; {expected}")
    return from_record(Admission, record)


def validate_tasks(
    tasks: Iterable[Task],
    validator: Validator,
    environment: dict[str, str],
    config: EvalConfig,
    *,
    path: Path | None = None,
    seconds: float | None = None,
    compiled: bool = False,
    on_row: Callable[[Admission], None] = lambda _: None,
    on_fault: Callable[[Task, SandboxFault], None] = lambda _, __: None,
) -> tuple[list[Admission], list[Task]]:
    """Rows of every task, old or new, and the tasks without one: out of time, or a fault of ours.

    No task is begun after `seconds`; one under way ends by its own time-outs.
    """
    began = time.monotonic()
    known = {} if path is None else {_key(row): row for row in read_rows(path)}
    rows: list[Admission] = []
    left: list[Task] = []
    for task in tasks:
        row = known.get((task.hash, config.id, tuple(sorted(environment.items()))))
        if row is None and seconds is not None and time.monotonic() - began > seconds:
            left.append(task)
            continue
        if row is None:
            try:
                row = validator.validate(task, config, compiled=compiled)
            except SandboxFault as fault:
                on_fault(task, fault)
                left.append(task)
                continue
            if path is not None:
                _append(path, row)
            on_row(row)
        rows.append(row)
    return rows, left


def _append(path: Path, row: Admission) -> None:
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(to_record(row)) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error


def _key(row: Admission) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    return row.task_hash, row.config_id, tuple(sorted(row.environment.items()))


def admission_table(rows: Sequence[Admission], title: str = "") -> Table:
    """A line a task: its verdict and what led to it, what it needs, and what it leaves to gain."""
    table = Table(title=title, title_justify="left")
    figures = ("sets", "set MiB", "call ms", "x floor", "vs compile")
    for name in ("task", "verdict", *figures, "why"):
        table.add_column(name, overflow="fold", justify="right" if name in figures else "left")
    for row in rows:
        timed = row.figures[0] if row.figures else None
        why = "; ".join(r.detail for r in row.remarks if r.level is row.verdict)
        verdict = Text(row.verdict, style=STYLES[row.verdict])
        table.add_row(row.task_id, verdict, *_figures(timed), Text(why))
    return table


def _figures(timed: ShapeFigures | None) -> tuple[str, str, str, str, str]:
    if timed is None:
        return ("-",) * 5
    head, memory = timed.headroom, timed.memory
    return (
        str(memory.sets),
        f"{(memory.inputs + memory.outputs) / 2**20:.1f}",
        f"{head.latency_ms:.3g}",
        "-" if head.times is None else f"{head.times:.2f}",
        "-" if head.compiled is None else str(head.compiled),
    )


def totals(rows: Sequence[Admission], left: Sequence[Task]) -> str:
    """One line: how many of each verdict, and how many are to be done."""
    counts = {level: sum(row.verdict is level for row in rows) for level in Level}
    words = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    waiting = f"; {len(left)} not validated" if left else ""
    return f"{number_of(len(rows), 'task')}: {words or 'none'}{waiting}"
