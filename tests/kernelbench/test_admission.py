"""A suite's rows on disk: written as they come, gone on with, and never taken for another's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kernelbench.admission import admission_table, choose, read_rows, totals, validate_tasks
from sandbox.admission import Admission, Level, Remark
from sandbox.errors import ConfigError, SandboxFault
from sandbox.types import EvalConfig, Task

TASKS = [Task(f"test/{name}", f"# {name}", "cpu") for name in ("1_a", "2_b", "10_c")]
CONFIG = EvalConfig()
HERE = {"device": "cpu", "torch": "2"}


class ListedValidator:
    """Verdicts from a table; every other task is sound. Counts what it is asked."""

    def __init__(self, **verdicts: Level) -> None:
        self.verdicts = verdicts
        self.asked: list[str] = []

    def validate(self, task: Task, config: EvalConfig, *, compiled: bool = False) -> Admission:
        self.asked.append(task.id)
        name = task.id.rpartition("_")[2]
        if self.verdicts.get(name) is Level.INVALID:
            raise SandboxFault("the zygote died")
        verdict = self.verdicts.get(name, Level.SOUND)
        remarks = (Remark("null candidate", verdict, "[all zeros] passes"),)
        return Admission(
            task.id, task.hash, task.device, config.id, verdict, "why", remarks, (), HERE
        )


def test_a_second_call_goes_on_where_the_first_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first, second = ListedValidator(), ListedValidator()
    rows, left = validate_tasks(TASKS, first, HERE, CONFIG, path=path, seconds=-1)
    assert (rows, left) == ([], TASKS)
    validate_tasks(TASKS[:2], first, HERE, CONFIG, path=path)
    with path.open("a") as stream:
        stream.write('{"task_id": "test/10')  # a kill in the middle of a line
    rows, left = validate_tasks(TASKS, second, HERE, CONFIG, path=path)
    assert second.asked == ["test/10_c"]
    assert [row.task_id for row in rows] == [task.id for task in TASKS]
    assert left == []
    assert read_rows(path) == rows


@pytest.mark.parametrize("other", ["task", "config", "environment"])
def test_a_row_of_another_question_does_not_count(tmp_path: Path, other: str) -> None:
    path = tmp_path / "rows.jsonl"
    validate_tasks(TASKS[:1], ListedValidator(), HERE, CONFIG, path=path)
    validator = ListedValidator()
    task = replace(TASKS[0], source="# new") if other == "task" else TASKS[0]
    config = EvalConfig(preset="other") if other == "config" else CONFIG
    here = HERE | {"torch": "3"} if other == "environment" else HERE
    validate_tasks([task], validator, here, config, path=path)
    assert validator.asked == [task.id]


def test_a_fault_of_ours_makes_no_row_and_is_tried_again(tmp_path: Path) -> None:
    path, faults = tmp_path / "rows.jsonl", []
    rows, left = validate_tasks(
        TASKS,
        ListedValidator(b=Level.INVALID),
        HERE,
        CONFIG,
        path=path,
        on_fault=lambda task, fault: faults.append(str(fault)),
    )
    assert [task.id for task in left] == ["test/2_b"]
    assert faults == ["the zygote died"]
    assert len(rows) == len(path.read_text().splitlines()) == 2
    assert totals(rows, left) == "2 tasks: 2 sound; 1 not validated"
    again = ListedValidator()
    validate_tasks(TASKS, again, HERE, CONFIG, path=path)
    assert again.asked == ["test/2_b"]


@pytest.mark.parametrize(
    "text", ["{}\n", "[1]\n", "words\n", '{"schema_version": 99}\n', "my only copy", "\xff"]
)
def test_a_file_that_is_no_record_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no record of `tasks validate`") as error:
        read_rows(path)
    assert "\n" not in str(error.value)
    assert path.read_text() == text


def test_only_takes_shell_patterns_of_ids_and_names() -> None:
    assert [t.id for t in choose(TASKS, ["1?_*"])] == ["test/10_c"]
    assert [t.id for t in choose(TASKS, ["1_a", "test/2*"])] == ["test/1_a", "test/2_b"]
    assert choose(TASKS, []) == TASKS
    with pytest.raises(ConfigError, match="no such task"):
        choose(TASKS, ["1_a", "3_*"])


def test_the_table_shows_verdicts_and_reasons_as_they_are() -> None:
    rows, _ = validate_tasks(TASKS, ListedValidator(b=Level.DEGENERATE), HERE, CONFIG)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(admission_table(rows, "suite"))
    text = console.export_text()
    assert "degenerate" in text
    assert "[all zeros] passes" in text


def test_rows_are_json_lines_with_a_schema_version(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    validate_tasks(TASKS, ListedValidator(), HERE, CONFIG, path=path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {record["schema_version"] for record in records} == {1}
