"""What a user sees of tasks: a line each, or one in full."""

from __future__ import annotations

from collections.abc import Sequence

from kernelbench.suite import TaskSummary
from sandbox.types import Task
from sandbox.words import number_of


def summary_lines(found: Sequence[TaskSummary]) -> list[str]:
    width = max(len(task.id) for task in found)
    sizes = [number_of(len(task.shapes), "shape") for task in found]
    wide = max(map(len, sizes))
    return [
        f"{t.id:{width}}  {t.dtype:8}  {size:{wide}}  {t.about}"
        for t, size in zip(found, sizes, strict=True)
    ]


def task_lines(task: Task) -> list[str]:
    """Its sizes as comments, then its reference."""
    lines = [f"# {task.id}, {task.device}, {task.dtype}"]
    for shape in task.shapes:
        constants = ", ".join(f"{name} = {value}" for name, value in shape.constants)
        lines.append(f"# {shape.name}: {constants or 'as written'}")
    return [*lines, task.source]
