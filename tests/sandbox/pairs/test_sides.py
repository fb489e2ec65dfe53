"""What is done to one side of a pair is done to the other: else equal code has unequal times."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.machine.handle import Worker
from sandbox.pairs.sides import Sides
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, Language, Status
from tests.sandbox.conftest import FAST, renamed, task_of

COPY = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.t().contiguous()


def get_inputs():
    return [torch.randn(512, 768)]


def get_init_inputs():
    return []
"""


def evaluated(evaluator: LocalEvaluator) -> None:
    task = task_of(COPY)
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, renamed(COPY)), FAST)
    assert found.status is Status.PASSED, found.detail


@pytest.mark.slow
def test_memory_is_read_and_written_alike_before_outputs_are_collected(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between "done" and collect: what it leaves in the caches is what collecting takes."""
    go, set_bytes, collect = Subject.go, Subject.set_bytes, Subject.collect
    evaluator.prepare(task_of(COPY), FAST)
    touched: Counter[tuple[str, int]] = Counter()
    seen: dict[bool, set[frozenset[Any]]] = defaultdict(set)

    def timed(self: Subject, sets: list[int], *args: Any, **options: Any) -> float:
        seconds = go(self, sets, *args, **options)
        touched.clear()
        return seconds

    def noted(self: Subject, name: str, first: int, count: int = 1) -> Any:
        touched[name, count] += 1
        return set_bytes(self, name, first, count)

    def collected(self: Subject, sets: list[int], **options: Any) -> Any:
        if self.stage in ("time", "reference") and touched:
            seen[self.worker.trusted].add(frozenset(touched.items()))
        return collect(self, sets, **options)

    monkeypatch.setattr(Subject, "go", timed)
    monkeypatch.setattr(Subject, "set_bytes", noted)
    monkeypatch.setattr(Subject, "collect", collected)
    evaluated(evaluator)
    assert seen[True] == seen[False]
    assert {name for each in seen[True] for (name, _), _ in each} == {"inputs", "slots"}


def test_what_a_batch_takes_beyond_its_calls_is_taken_off_both_sides(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only what one without calls takes: nobody falls asleep in that."""
    late_s, send, net = 0.004, Worker.send, Sides.net
    seen: dict[bool, list[tuple[float, float]]] = defaultdict(list)

    def sent(self: Worker, op: str, **options: Any) -> None:
        if op == "go" and options["sets"]:
            time.sleep(late_s)
        send(self, op, **options)

    def counted(self: Sides, side: Subject, seconds: float) -> float:
        told = net(self, side, seconds)
        seen[side is self.reference].append((seconds, told))
        return told

    monkeypatch.setattr(Worker, "send", sent)
    monkeypatch.setattr(Sides, "net", counted)
    evaluated(evaluator)
    for mine in (True, False):
        assert len(seen[mine]) >= 4
        assert all(told <= max(s - late_s, s / 2) for s, told in seen[mine])


def test_outputs_find_memory_that_was_touched_in_order(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the model, in whose order the pages of a transpose's output lie scattered."""
    go, reserve = Subject.go, Subject.reserve
    fresh: set[int] = set()
    faults: list[int] = []

    def reserved(self: Subject, count: int) -> None:
        reserve(self, count)
        fresh.add(self.worker.pid)

    def counted(self: Subject, sets: list[int], *args: Any, **options: Any) -> float:
        before = faults_of(self.worker.pid)
        seconds = go(self, sets, *args, **options)
        if self.worker.pid in fresh:
            fresh.remove(self.worker.pid)
            pages = len(sets) * self.layouts["slots"].stride // 4096
            faults.append(100 * (faults_of(self.worker.pid) - before) // pages)
        return seconds

    monkeypatch.setattr(Subject, "reserve", reserved)
    monkeypatch.setattr(Subject, "go", counted)
    evaluated(evaluator)
    assert len(faults) >= 2  # both sides of a pair; one that a busy machine slows down is the last
    assert max(faults) < 10  # per cent of the outputs' pages


@pytest.mark.slow
def test_what_is_never_the_heaps_is_not_reserved(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[int] = []
    monkeypatch.setattr(Subject, "reserve", lambda self, count: reserved.append(count))
    monkeypatch.setattr("sandbox.subjects.plan.MAPPED_BYTES", 1 << 20)
    evaluated(evaluator)
    assert reserved == []
    monkeypatch.setattr("sandbox.subjects.plan.MAPPED_BYTES", 2 << 20)
    monkeypatch.setattr("sandbox.subjects.plan.RESERVED_BYTES", 3 << 20)
    evaluated(evaluator)
    sets = evaluator.prepare(task_of(COPY), FAST).plan.sets
    assert set(reserved) == {sets + 2}  # of 1.5 MiB each


def faults_of(pid: int) -> int:
    """Minor page faults of a process since it began: proc(5), field 10 of its stat."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
