"""References that nothing can be judged against, and faults of ours: never a candidate's score."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox.errors import SandboxFault, TaskError
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, Language, Status, Task
from tests.sandbox.conftest import (
    FAST,
    SCALE,
    Evaluate,
    forward,
    renamed,
    scratch_folders,
    task_of,
    workers_alive,
)

RESULT = "torch.relu(x) * self.factor + 1.0"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("torch.relu(x, missing)", "NameError"),
        ("x + torch.randn_like(x)", "stochastic"),
        ("nn.functional.dropout(x, 0.5, True)", "stochastic"),
        ("torch.zeros_like(x)", "degenerate"),
        ("torch.full_like(x, 3.0)", "degenerate"),
        ("torch.ones_like(x).cumsum(1)", "degenerate"),
        ("x", "degenerate"),
        ("x[x > 0]", "data-dependent"),
        ("(x > 0).nonzero()", "data-dependent"),
        ("3", "no tensor"),
        ("None", "no tensor"),
        ("object()", "object"),
        ("x / 0", "not finite"),
        ("x * 1j", "complex"),
        ("x[:0]", "no element"),
        ("(x > 0).to(torch.uint16)", "uint16 tensors"),
        ("__import__('os')._exit(1)", "exited with code 1"),
        ("__import__('ctypes').string_at(0)", "SIGSEGV"),
    ],
)
def test_a_reference_that_cannot_be_scored_is_named(
    evaluate: Evaluate, result: str, words: str
) -> None:
    found = evaluate(forward("return y"), SCALE.replace(RESULT, result))
    assert found.status is Status.INVALID_REFERENCE, found.detail
    assert words in found.detail
    assert not found.status.scored


POOLED = """
import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = nn.BatchNorm2d(features)

    def forward(self, x):
        return self.layer(nn.functional.max_pool2d(x, 4))
"""
POOLED_INPUTS = """

def get_inputs():
    return [torch.rand(4, 8, 32, 32)]


def get_init_inputs():
    return [8]
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Model(", "class Other("),
        ("def get_inputs", "def other"),
        ("import torch\n", "import torch\nraise OSError\n"),
        ("class Model", "class class Model"),
        ("return [3.0]", "return [3.0, 4.0]"),
        ("torch.randn(7, 129)", "object()"),
        ("torch.randn(7, 129)", "torch.randn(int(torch.randint(2, 9, ())), 129)"),
    ],
    ids=["no Model", "no inputs", "import", "syntax", "constructor", "object", "random shape"],
)
def test_a_task_outside_the_contract_is_an_invalid_reference(
    evaluate: Evaluate, old: str, new: str
) -> None:
    found = evaluate(forward("return y"), SCALE.replace(old, new, 1))
    assert found.status is Status.INVALID_REFERENCE, found.detail


def test_a_reference_that_hangs_is_invalid(evaluate: Evaluate) -> None:
    hang = SCALE.replace(RESULT, "__import__('time').sleep(1000)")
    found = evaluate(forward("return y"), hang, config=replace(FAST, run_timeout_s=1.5))
    assert found.status is Status.INVALID_REFERENCE
    assert "1.5 s" in found.detail


def test_a_reference_may_write_its_input(evaluate: Evaluate) -> None:
    writes = SCALE.replace(RESULT, "x.relu_().mul_(self.factor) + 1.0")
    assert evaluate(renamed(writes), writes).status is Status.PASSED
    found = evaluate(forward("return y"), writes)
    assert found.status is Status.WRONG_VALUE, found.detail
    assert "an input that the reference writes to was left otherwise" in found.detail


def test_a_reference_that_raises_on_scaled_inputs_is_judged_on_those_it_takes(
    evaluate: Evaluate,
) -> None:
    unit = SCALE.replace("torch.randn(", "torch.rand(").replace(
        RESULT,
        f"torch.nn.functional.binary_cross_entropy(x, x.flip(1), reduction='none') + {RESULT}",
    )
    found = evaluate(renamed(unit), unit)
    assert found.status is Status.PASSED, found.detail
    names = [case.name for case in found.cases]
    assert any("inputs x 0.01" in name for name in names)
    assert not any("inputs x 3" in name or "inputs x -1" in name for name in names)


@pytest.mark.slow
def test_buffers_that_calls_move_are_where_they_were_before_every_case(evaluate: Evaluate) -> None:
    """Of a pooled batch one changed element often changes nothing, and is changed anew."""
    pooled = POOLED.format(name="Model") + POOLED_INPUTS
    for number in range(2):
        found = evaluate(POOLED.format(name="ModelNew"), f"{pooled}# {number}\n")
        assert found.status is Status.PASSED, found.detail


@pytest.mark.parametrize("given", ["{'x': torch.randn(7, 129)}", "torch.randn(1, 7, 129)"])
def test_arguments_that_are_no_list_are_refused(evaluate: Evaluate, given: str) -> None:
    """A call got the keys of the one, and the only row of the other."""
    reference = SCALE.replace("[torch.randn(7, 129)]", given)
    found = evaluate(renamed(reference), reference)
    assert found.status is Status.INVALID_REFERENCE
    assert "expected a list of arguments" in found.detail


def test_a_complex_buffer_is_refused_and_not_cut_to_its_real_part(evaluate: Evaluate) -> None:
    """Code that rotated by no angle passed for Llama's rotary embedding."""
    buffer = "self.register_buffer('turns', torch.polar(torch.ones(129), torch.ones(129)))"
    reference = SCALE.replace("self.factor = factor", f"self.factor = factor\n        {buffer}")
    reference = reference.replace(RESULT, "x * torch.view_as_real(self.turns)[:, 1]")
    found = evaluate(renamed(reference), reference)
    assert found.status is Status.INVALID_REFERENCE
    assert "turns is complex: split it with torch.view_as_real" in found.detail


@pytest.mark.parametrize(
    ("result", "mask"),
    [
        ("torch.softmax(x + m, -1)", "torch.triu(torch.full((48, 48), float('-inf')), 1)"),
        ("torch.softmax(x * m - (1 - m) * 1e9, -1)", "(torch.rand(8, 1, 48) > 0.2).float()"),
        ("x * m", "torch.randn(48, 48).expand(8, 48, 48)"),
    ],
    ids=["zeros and infinities", "of what is far away", "expanded"],
)
def test_an_input_that_masks_or_is_expanded_makes_no_task_degenerate(
    evaluate: Evaluate, result: str, mask: str
) -> None:
    """The first was taken for ignored, since no noise changes it; noise on the second was worth
    more than what it masks; the third could not be restored.
    """
    changes = {RESULT: result, "[torch.randn(7, 129)]": f"[torch.randn(8, 48, 48), {mask}]"}
    reference = SCALE.replace("forward(self, x)", "forward(self, x, m)")
    for old, new in changes.items():
        reference = reference.replace(old, new)
    found = evaluate(renamed(reference), reference, config=replace(FAST, verify_only=True))
    assert found.status is Status.PASSED, found.detail


def test_a_task_of_another_device_is_refused(evaluator: LocalEvaluator) -> None:
    with pytest.raises(TaskError, match="device cuda"):
        evaluator.prepare(Task("test/far", SCALE, "cuda"), FAST)


@pytest.mark.parametrize("verify_only", [False, True])
@pytest.mark.slow
def test_a_reference_killed_once_is_no_fault_of_its_task(
    evaluator: LocalEvaluator, verify_only: bool
) -> None:
    config = replace(FAST, verify_only=verify_only)
    task = task_of(f"import time\ntime.sleep(1)\n{SCALE}# {verify_only}\n")
    before = set(workers_alive(evaluator))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(evaluator.prepare, task, config)
        while not (started := set(workers_alive(evaluator)) - before):
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(started.pop(), signal.SIGKILL)
        assert asked.result(60).task == task


def test_a_zygote_killed_once_is_replaced(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE)
    os.kill(int(evaluator._zygote.pid or 0), signal.SIGKILL)
    candidate = Candidate(task.id, Language.TORCH, forward("return y"))
    assert evaluator.evaluate(task, candidate, FAST).status is Status.PASSED


@pytest.mark.parametrize(
    ("kills", "status"),
    [pytest.param(1, Status.PASSED, marks=pytest.mark.slow), (9, Status.SANDBOX_ERROR)],
)
def test_a_zygote_killed_during_an_evaluation_is_our_fault(
    evaluator: LocalEvaluator, kills: int, status: Status
) -> None:
    task = task_of(SCALE)
    evaluator.prepare(task, FAST)
    ended = threading.Event()

    def kill() -> None:
        for _ in range(kills):
            while not workers_alive(evaluator) and not ended.is_set():
                time.sleep(0.01)
            time.sleep(0.3)
            if evaluator._zygote.pid is not None and not ended.is_set():
                os.kill(evaluator._zygote.pid, signal.SIGKILL)
                time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    slow = forward("return y", top="import time\ntime.sleep(1)")
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, slow), FAST)
    ended.set()
    killer.join()
    assert found.status is status, found.detail
    assert scratch_folders() == []


def test_a_cache_that_cannot_be_written_is_our_fault(one_core: None, tmp_path: Path) -> None:
    (tmp_path / "builds").write_text("")
    evaluator = LocalEvaluator("cpu", cache_dir=tmp_path)
    task = task_of(SCALE)
    found = evaluator.evaluate(task, Candidate(task.id, Language.CPP, forward("return y")), FAST)
    assert found.status is Status.SANDBOX_ERROR
    evaluator._stand.settle()  # those of the null experiment end beside what comes next
    kept_warm = workers_alive(evaluator)
    shutil.rmtree(tmp_path / "baselines")
    (tmp_path / "baselines").write_text("")
    with pytest.raises(SandboxFault, match=f"{task.id}: .*baselines"):
        evaluator.prepare(task, replace(FAST, rounds=2))
    assert workers_alive(evaluator) == kept_warm
    evaluator.cool()
    assert workers_alive(evaluator) == []
    evaluator.close()
    assert scratch_folders() == []
