"""What the system kills while a host has no memory left."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.machine import killed
from sandbox.types import Candidate, Language, Status
from tests.sandbox.conftest import FAST, SCALE, forward, task_of, workers_alive

TASK = task_of(SCALE)
SUICIDE = forward("import os, signal", "os.kill(os.getpid(), signal.SIGKILL)")


@pytest.fixture
def vmstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the system tells how many it has killed."""
    path = tmp_path / "vmstat"
    path.write_text("pgfault 5\noom_kill 7\n")
    monkeypatch.setattr(killed, "VMSTAT", path)
    return path


def test_the_system_tells_how_many_it_has_killed(vmstat: Path) -> None:
    assert killed.oom_kills() == 7
    vmstat.unlink()
    assert killed.oom_kills() == 0


def test_a_candidate_killed_for_want_of_memory_is_tried_again(
    evaluator: LocalEvaluator, vmstat: Path
) -> None:
    """Compilers and other workers may have taken it."""
    evaluator.prepare(TASK, FAST)
    before = set(workers_alive(evaluator))
    candidate = Candidate(TASK.id, Language.TORCH, forward("return y", top="print('killed')"))
    with ThreadPoolExecutor(1) as pool:
        with evaluator._turns.hold("another candidate"):
            asked = pool.submit(evaluator.evaluate, TASK, candidate, FAST, to_beat=1.0)
            deadline = time.monotonic() + 20
            while not evaluator._turns._waiting and time.monotonic() < deadline:
                time.sleep(0.01)
            (victim,) = set(workers_alive(evaluator)) - before
            vmstat.write_text("pgfault 5\noom_kill 8\n")
            os.kill(victim, signal.SIGKILL)
        found = asked.result(60)
    assert found.status is Status.PASSED, found.detail


class Rising:
    """A host that is always out of memory."""

    def __init__(self) -> None:
        self.count = 0

    def read_text(self) -> str:
        self.count += 1
        return f"oom_kill {self.count}\n"


@pytest.mark.parametrize("always", [True, False])
def test_the_second_time_it_is_out_of_memory_and_without_any_its_own_death(
    evaluator: LocalEvaluator, vmstat: Path, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    if always:
        monkeypatch.setattr(killed, "VMSTAT", Rising())
    found = evaluator.evaluate(TASK, Candidate(TASK.id, Language.TORCH, SUICIDE), FAST)
    expected = Status.OUT_OF_MEMORY if always else Status.RUNTIME_ERROR
    assert (found.status, "SIGKILL" in found.detail) == (expected, True)
