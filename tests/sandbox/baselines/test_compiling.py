"""What torch.compile made is there for the same task's next workers, and for no other's."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.baselines.compiling import HEADERS, INDUCTOR_CACHE, Compiling
from sandbox.evaluator import LocalEvaluator
from sandbox.subjects.subject import Subject
from sandbox.types import Task
from tests.sandbox.conftest import FAST, SCALE, task_of

ONE, OTHER = (task_of(SCALE.replace("1.0", f"6.{i}"), f"test/{i}") for i in (25, 75))


@pytest.fixture
def compiling(evaluator: LocalEvaluator, tmp_path: Path) -> Compiling:
    """With workers of eager, which write nothing."""
    evaluator.prepare(ONE, FAST)
    return Compiling(evaluator._stand, tmp_path / "kept", evaluator._stand.retire)


def started(compiling: Compiling, evaluator: LocalEvaluator, task: Task) -> Subject:
    signature = evaluator.prepare(task, FAST).signature
    return compiling.start(task, FAST, signature, None)


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write(subject: Subject, **texts: str) -> None:
    for name, text in texts.items():
        path = (
            subject.worker.scratch
            / INDUCTOR_CACHE
            / name.replace("__", "/").replace("_gch", ".gch")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_tasks_code_serves_that_task_and_headers_serve_all(
    evaluator: LocalEvaluator, compiling: Compiling
) -> None:
    with closing(started(compiling, evaluator, ONE)) as first:
        write(first, ab__code="of one", precompiled_headers__a_gch="large")
        compiling.keep(first)
    assert files(compiling.kept / ONE.hash) == {"ab/code": "of one"}
    assert files(compiling.kept / HEADERS) == {"a.gch": "large"}
    for task, there in ((ONE, {"ab/code": "of one"}), (OTHER, {})):
        with closing(started(compiling, evaluator, task)) as next_one:
            scratch = next_one.worker.scratch / INDUCTOR_CACHE
            assert files(scratch) == {"precompiled_headers/a.gch": "large", **there}
            assert scratch.stat().st_uid == next_one.worker.scratch.stat().st_uid


def test_what_a_process_wrote_for_an_earlier_task_is_not_kept_for_this_one(
    evaluator: LocalEvaluator, compiling: Compiling
) -> None:
    with closing(started(compiling, evaluator, OTHER)) as subject:
        write(subject, cd__earlier="of another", ab__code="of this one")
        old = subject.worker.scratch / INDUCTOR_CACHE / "cd"
        for path in (old, old / "earlier"):
            os.utime(path, (time.time(), subject.since_s - 1))
        compiling.keep(subject)
    assert files(compiling.kept / OTHER.hash) == {"ab/code": "of this one"}
    assert [path.name for path in (compiling.kept / OTHER.hash).iterdir()] == ["ab"]
