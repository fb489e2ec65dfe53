"""TF32 where it is allowed, whether eager uses it or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.config import load_evaluation
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, Language, Status, Task

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]
TASK = Task(
    "test/conv3d",
    """
import torch
class Model(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv3d(3, channels, 3)
    def forward(self, x):
        return torch.softmax(self.conv(x), 1)
def get_inputs():
    return [torch.randn(64, 3, 16, 32, 32)]
def get_init_inputs():
    return [16]
""",
    "cuda",
)
TURNED = """
import torch
torch.backends.cudnn.benchmark = True
class ModelNew(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv3d(3, channels, 3)
    def forward(self, x):
        weight = self.conv.weight.to(memory_format=torch.channels_last_3d)
        x = x.to(memory_format=torch.channels_last_3d)
        found = torch.nn.functional.conv3d({x}, {weight}, {bias})
        return torch.softmax(found.float(), 1).contiguous()
"""


def turned(cast: str = "") -> Candidate:
    names = {name: name + cast for name in ("x", "weight")}
    source = TURNED.format(bias="self.conv.bias" + cast, **names)
    return Candidate(TASK.id, Language.TORCH, source)


@pytest.mark.parametrize("preset", ["quick", "kernelbench"])
def test_a_convolution_in_tf32_is_right_and_one_in_bfloat16_is_not(
    evaluator: LocalEvaluator, preset: str
) -> None:
    config = replace(load_evaluation(preset), verify_only=True)
    found = evaluator.evaluate(TASK, turned(), config)
    assert found.status is Status.PASSED, found.detail
    assert evaluator.evaluate(TASK, turned(".bfloat16()"), config).status is Status.WRONG_VALUE
