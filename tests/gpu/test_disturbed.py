"""A GPU that somebody else uses during timing: our fault, never a score."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.machine.gpu_state import GpuWatch, disturbance
from sandbox.types import Candidate, EvalConfig, Language, Status, Task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0 + 1.0

def get_inputs():
    return [torch.randn(1024, 4096)]

def get_init_inputs():
    return []
"""
CANDIDATE = REFERENCE.replace("class Model(", "class ModelNew(")
BURN = """
import select, sys, torch
x = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
open(sys.argv[1], "w").write("up")
while not select.select([0], [], [], 0)[0]:
    for _ in range(20):
        x @ x
    torch.cuda.synchronize()
"""
"""Ends with whoever holds the other end of its standard input."""
PARENT = """
import subprocess, sys
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
print(subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], **quiet).pid)
"""
"""Ends at once, so that the burner is nobody's descendant of ours."""


@pytest.fixture
def watch(evaluator: LocalEvaluator) -> GpuWatch:
    """The evaluator's own watch: NVML lists a process once it has a context."""
    found = GpuWatch(0)
    if "processes" not in found.sees:
        pytest.skip(f"NVML tells only {found.sees} here")
    return found


@pytest.fixture
def burner(watch: GpuWatch, tmp_path: Path) -> Iterator[int]:
    """A foreign process that keeps the GPU busy."""
    up = tmp_path / "up"
    command = [sys.executable, "-c", PARENT, BURN, str(up)]
    theirs, ours = os.pipe()
    try:
        told = subprocess.run(
            command, stdin=theirs, stdout=subprocess.PIPE, text=True, check=True, timeout=60
        )
        deadline = time.monotonic() + 60
        while not up.exists():
            assert time.monotonic() < deadline, "the burner did not start"
            time.sleep(0.1)
        yield int(told.stdout)
    finally:
        os.close(theirs)
        os.close(ours)  # its end


def test_nvml_tells_something_on_this_machine() -> None:
    sees = GpuWatch(0).sees.split()
    assert {"throttling", "ecc"} & set(sees), sees


def test_a_quiet_gpu_passes_and_says_what_was_watched(
    evaluator: LocalEvaluator, config: EvalConfig
) -> None:
    task = Task("test/quiet", REFERENCE, "cuda")
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, CANDIDATE), config)
    assert found.status is Status.PASSED, found.detail
    assert found.environment["gpu_watch"] == GpuWatch(0).sees


def test_our_own_workers_are_not_foreign(
    evaluator: LocalEvaluator, config: EvalConfig, watch: GpuWatch
) -> None:
    before = watch.look()
    task = Task("test/own", REFERENCE, "cuda")
    evaluator.evaluate(task, Candidate(task.id, Language.TORCH, CANDIDATE), config)
    assert disturbance(before, watch.look(before)) == ""


def test_a_foreign_process_at_work_is_seen(watch: GpuWatch, burner: int) -> None:
    before = watch.look()
    time.sleep(2.0)
    assert str(burner) in disturbance(before, watch.look(before))


def test_timing_beside_a_foreign_process_is_our_fault_and_the_next_one_passes(
    evaluator: LocalEvaluator, config: EvalConfig, burner: int
) -> None:
    task = Task("test/disturbed", REFERENCE.replace("2.0", "3.0"), "cuda")
    candidate = Candidate(task.id, Language.TORCH, CANDIDATE.replace("2.0", "3.0"))
    found = evaluator.evaluate(task, candidate, config)
    assert found.status is Status.SANDBOX_ERROR, found.detail
    assert found.timing is None
    assert str(burner) in found.detail
    os.kill(burner, signal.SIGKILL)
    time.sleep(2.0)  # until the driver has let go of it
    after = evaluator.evaluate(task, candidate, config)
    assert after.status is Status.PASSED, after.detail
