"""A folder of synthetic problems that passed the admission test, filled call by call.

`NAME.py` is a problem like any other, so that the folder is a suite; `admission.jsonl` says of
every composition that was tried why it is there or not. Tasks too like those of evaluation suites
are never tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelbench.admission import Validator, validate_tasks
from kernelbench.similarity import Known
from sandbox.admission import Admission
from sandbox.errors import ConfigError
from sandbox.types import EvalConfig, Task
from sandbox.words import number_of

RECORD = "admission.jsonl"


@dataclass(frozen=True)
class Made:
    """What a folder holds after a call."""

    admitted: int
    refused: int
    too_alike: int
    left: int
    """To be tried by the next call."""

    def __str__(self) -> str:
        waiting = f", {self.left} to be tried" if self.left else ""
        return (
            f"{number_of(self.admitted, 'task')}; {self.refused} cannot be scored, "
            f"{self.too_alike} are too like an evaluation suite's{waiting}"
        )


@dataclass(frozen=True)
class Folder:
    path: Path

    def fill(
        self,
        tasks: Sequence[Task],
        evaluated: Sequence[Task],
        validator: Validator,
        environment: Mapping[str, str],
        config: EvalConfig,
        *,
        seconds: float | None = None,
        on_row: Callable[[Admission], None] = lambda _: None,
    ) -> Made:
        """Try every task that was not tried yet, and write those that can be scored.

        Raises ConfigError where the folder holds something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path}: is a file; name a new or empty folder")
        if self.path.exists() and any(self.path.iterdir()) and not (self.path / RECORD).exists():
            raise ConfigError(f"{self.path}: holds other files; name a new folder")
        self.path.mkdir(parents=True, exist_ok=True)
        known = Known.of([(task.id, task.source) for task in evaluated])
        wanted = [task for task in tasks if known.too_alike(task.source) is None]
        rows, left = validate_tasks(
            wanted,
            validator,
            dict(environment),
            config,
            path=self.path / RECORD,
            seconds=seconds,
            on_row=on_row,
        )
        admitted = {row.task_id for row in rows if row.verdict.scored}
        for task in wanted:
            if task.id in admitted:
                name = task.id.rpartition("/")[2].replace("-", "_")
                (self.path / f"{name}.py").write_text(task.source, encoding="utf-8")
        return Made(len(admitted), len(rows) - len(admitted), len(tasks) - len(wanted), len(left))
