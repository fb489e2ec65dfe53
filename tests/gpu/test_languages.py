"""Every language on a GPU: each prompt example passes, and its corruptions do not."""

from __future__ import annotations

from importlib.resources import files

import pytest

from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Status, Task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
EXAMPLES = files("agent.prompts") / "examples"


def source(name: str) -> str:
    return (EXAMPLES / f"{name}.py.j2").read_text()


TASK = Task("test/bias_relu", source("reference"), "cuda")


@pytest.mark.parametrize("language", [Language.CUDA, Language.TRITON, Language.CUDA_INLINE])
def test_the_worked_example_passes_with_an_interval(
    evaluator: LocalEvaluator, config: EvalConfig, language: Language
) -> None:
    result = evaluator.evaluate(TASK, Candidate(TASK.id, language, source(language)), config)
    assert result.status is Status.PASSED, (result.detail, result.build_log, result.stderr)
    assert result.timing is not None
    assert result.timing.speedup.low < result.timing.speedup.high
    assert result.parameters == "name"


@pytest.mark.parametrize("language", [Language.CUDA, Language.TRITON])
def test_a_kernel_that_drops_the_bias_is_wrong(
    evaluator: LocalEvaluator, config: EvalConfig, language: Language
) -> None:
    text = source(language)
    wrong = text.replace("+ bias[i % features]", "")
    wrong = wrong.replace("+ tl.load(bias_ptr + i % features, mask=mask)", "")
    assert wrong != text
    result = evaluator.evaluate(TASK, Candidate(TASK.id, language, wrong), config)
    assert result.status is Status.WRONG_VALUE, result.detail


BROKEN = {
    Language.CUDA: source("cuda").replace("const float y =", "const flot y ="),
    Language.CUDA_INLINE: source("cuda_inline").replace("float", "flot"),
    Language.TRITON: source("triton").replace("tl.load(", "tl.no_such_thing(", 1),
}


@pytest.mark.parametrize("language", BROKEN)
def test_code_that_does_not_compile_is_a_compile_error(
    evaluator: LocalEvaluator, config: EvalConfig, language: Language
) -> None:
    candidate = Candidate(TASK.id, language, BROKEN[language])
    result = evaluator.evaluate(TASK, candidate, config)
    assert result.status is Status.COMPILE_ERROR, (result.status, result.detail)


WRONG = {
    "a dropped tail": ("i < n;", "i < n - 1;", Status.WRONG_VALUE),
    "an input that is written": (
        "out[i] = y",
        "((float*)x)[i] = 0.0f; out[i] = y",
        Status.INPUT_MUTATED,
    ),
}
"""What breaks the process or the device is in test_faults.py."""


@pytest.mark.parametrize("fault", WRONG)
def test_a_kernel_that_does_wrong_gets_its_status(
    evaluator: LocalEvaluator, config: EvalConfig, fault: str
) -> None:
    old, new, status = WRONG[fault]
    text = source("cuda")
    assert old in text
    candidate = Candidate(TASK.id, Language.CUDA, text.replace(old, new))
    result = evaluator.evaluate(TASK, candidate, config)
    assert result.status is status, result.detail


HACKS = {
    "work on a stream nobody waits for, hidden behind a static buffer": """
import torch
from torch import nn
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))
        self.out = None
    def forward(self, x):
        if self.out is None:
            self.out = torch.relu(x + self.bias)
        return self.out
""",
    "a result cached by address": """
import torch
from torch import nn
CACHE = {}
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))
    def forward(self, x):
        if x.data_ptr() not in CACHE:
            CACHE[x.data_ptr()] = torch.relu(x + self.bias)
        return CACHE[x.data_ptr()]
""",
}


@pytest.mark.parametrize("hack", HACKS)
def test_stale_results_are_wrong_values(
    evaluator: LocalEvaluator, config: EvalConfig, hack: str
) -> None:
    result = evaluator.evaluate(TASK, Candidate(TASK.id, Language.TORCH, HACKS[hack]), config)
    assert result.status is Status.WRONG_VALUE, result.detail
