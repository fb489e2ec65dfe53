"""What a reference looks like to its operator, and which references can have none."""

import pytest

from agent.export.artefact import operator_name
from agent.export.capture import interface, interfaces
from agent.export.runtime.models import init_values
from kernelbench.suite import load_tasks
from sandbox.types import Shape, Task

MODEL = """
import torch
from torch import nn

ROWS = 4

class Model(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        {init}

    def forward(self, x, *more):
        {forward}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return [{arguments}]
"""


def task(
    forward: str = "return x * 2",
    init: str = "pass",
    inputs: str = "torch.randn(ROWS, 3)",
    arguments: str = "",
    dtype: str = "float32",
) -> Task:
    source = MODEL.format(forward=forward, init=init, inputs=inputs, arguments=arguments)
    shapes = (Shape("given"), Shape("tall", (("ROWS", 9),)))
    return Task("test/model", source, "cpu", dtype=dtype, shapes=shapes)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_builtin_problem_can_be_an_operator_at_every_shape(device):
    tasks = load_tasks("builtin", device)
    found = interfaces(tasks)
    assert [i.refused for i in found] == [None] * len(tasks)
    assert [len(i.shapes) for i in found] == [len(t.shapes) for t in tasks]
    assert {t.id for t, i in zip(tasks, found, strict=True) if i.autograd == "none"} == {
        "builtin/histogram"
    }


@pytest.mark.slow
def test_what_a_reference_prints_does_no_harm():
    [found] = interfaces([task(init="import os; os.write(1, b'\\xff without an end')")])
    assert found.refused is None


def test_arguments_state_and_outputs_are_told():
    linear = "self.inner = nn.Linear(3, 2); self.register_buffer('shift', torch.ones(2))"
    forward = "return self.inner(x) + self.shift * more[0], x.argmax(-1)"
    found = interface(task(forward, linear, "torch.randn(ROWS, 3), 0.5", "3", dtype="bfloat16"))
    assert found.refused is None
    assert [kind for _, kind in found.inputs] == ["Tensor", "float"]
    assert found.state == ("inner.weight", "inner.bias", "shift")
    assert (found.outputs, found.autograd, found.init) == (2, "recompute", "[3]")
    assert [s.readable for s in found.shapes] == ["bfloat16[4,3] 0.5", "bfloat16[9,3] 0.5"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"forward": "return x.add_(1)"}, "it changes its arguments"),
        ({"forward": "return x.view(-1)"}, "shares memory with an argument"),
        ({"forward": "y = x * 2; return y, y"}, "or another output"),
        ({"forward": "return {'y': x * 2}"}, "more than tensors in a tuple"),
        ({"forward": "return x * ROWS"}, "Model reads ROWS"),
        ({"forward": "return x * self.k", "init": "self.k = torch.ones(3)"}, "a tensor in k"),
        ({"inputs": "[torch.randn(3)]"}, "forward takes a list"),
        ({"inputs": "3.0", "forward": "return torch.ones(2) * x"}, "forward takes no tensor"),
        ({"arguments": "torch.ones(3)"}, "more than numbers and text"),
        ({"arguments": "{1: 2}"}, "do not survive JSON"),
        ({"forward": "raise ValueError('no')"}, "its reference fails here: ValueError: no"),
    ],
)
def test_a_reference_that_no_operator_can_stand_for_is_refused_with_a_reason(changes, reason):
    assert reason in str(interface(task(**changes)).refused)


def test_tuples_among_constructor_arguments_stay_tuples():
    found = interface(task(arguments="(3, 5), [1, (2,)], None"))
    assert found.refused is None
    assert init_values(found.init) == [(3, 5), [1, (2,)], None]


@pytest.mark.parametrize(
    ("task_id", "name"),
    [
        ("builtin/softmax", "softmax"),
        ("kernelbench/level1/19_ReLU", "level1_19_relu"),
        ("file/3 tails", "op_3_tails"),
    ],
)
def test_operators_are_named_after_their_tasks(task_id, name):
    assert operator_name(task_id) == name
