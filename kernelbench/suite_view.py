"""What a user sees of tasks: a line each, or one in full."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from kernelbench.suite import TaskSummary
from sandbox.types import Task
from sandbox.words import number_of

LEAST = 24
"""Columns that what a task is about needs at least."""


def summary_lines(found: Sequence[TaskSummary], columns: int | None = None) -> list[str]:
    """A line each; in so many columns, as many lines as it takes."""
    width = max(len(task.id) for task in found)
    sizes = [number_of(len(task.shapes), "shape") for task in found]
    wide = max(map(len, sizes))
    heads = [
        f"{t.id:{width}}  {t.dtype:8}  {size:{wide}}  "
        for t, size in zip(found, sizes, strict=True)
    ]
    if columns is None or columns - len(heads[0]) < LEAST:
        return [head + task.about for head, task in zip(heads, found, strict=True)]
    told: list[str] = []
    for head, task in zip(heads, found, strict=True):
        first, *more = textwrap.wrap(task.about, columns - len(head)) or [""]
        told += [head + first, *(" " * len(head) + line for line in more)]
    return told


def task_lines(task: Task) -> list[str]:
    """Its sizes as comments, then its reference."""
    lines = [f"# {task.id}, {task.device}, {task.dtype}"]
    for shape in task.shapes:
        constants = ", ".join(f"{name} = {value}" for name, value in shape.constants)
        lines.append(f"# {shape.name}: {constants or 'as written'}")
    return [*lines, task.source]
