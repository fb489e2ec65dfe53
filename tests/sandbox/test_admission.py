"""Problems that cannot be scored, written by hand, and what `validate` says of each."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from sandbox.admission import (
    Admission,
    Headroom,
    Level,
    Memory,
    OutputRange,
    Remark,
    ShapeFigures,
    conclude,
    remarks_on,
)
from sandbox.checking import compare, nulls
from sandbox.checking.nulls import NullCandidate
from sandbox.evaluator import LocalEvaluator
from sandbox.observation import Errors
from sandbox.records import from_record, to_record
from sandbox.types import Candidate, Language, Status
from sandbox.validate import output_range
from tests.sandbox.conftest import FAST, LINEAR, SCALE, Evaluate, renamed, task_of

RESULT = "torch.relu(x) * self.factor + 1.0"
PAIR = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(129))
        self.shift = nn.Parameter(torch.zeros(129))

    def forward(self, x, y):
        return RESULT


def get_inputs():
    return [torch.randn(7, 129), torch.randn(7, 129)]


def get_init_inputs():
    return []
"""
SOUND = "torch.relu(x) * self.weight + y * self.shift"


@pytest.fixture(scope="module")
def validate(evaluator: LocalEvaluator):
    def run(source: str, config=FAST, **options: object) -> Admission:
        found = evaluator.validate(task_of(source, **options), config)
        record = to_record(found)
        assert to_record(from_record(Admission, json.loads(json.dumps(record)))) == record
        return found

    return run


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("torch.zeros_like(x)", "all zeros passes"),
        pytest.param("torch.ones_like(x)", "all ones passes", marks=pytest.mark.slow),
        ("torch.full_like(x, 3.0)", "one constant passes"),
        pytest.param("1 + 1e-9 * x", "one constant passes", marks=pytest.mark.slow),
        pytest.param("torch.sigmoid(50 + 0.01 * x)", "all ones passes", marks=pytest.mark.slow),
        pytest.param(
            "torch.softmax(x, 1).mean(1, keepdim=True) * 2",
            "one constant passes",
            marks=pytest.mark.slow,
        ),
        ("torch.ones_like(x).cumsum(1)", "does not depend on the inputs' values"),
        ("x", "an input unchanged passes"),
    ],
)
def test_a_problem_that_takes_no_work_is_degenerate(validate, result: str, words: str) -> None:
    found = validate(SCALE.replace(RESULT, result))
    assert found.verdict is Level.DEGENERATE, found.remarks
    assert words in " ".join(r.detail for r in found.remarks)
    assert found.figures[0].nulls


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("x + torch.randn_like(x)", "stochastic"),
        ("x[x > 0]", "data-dependent"),
        ("torch.relu(x, missing)", "NameError"),
        ("x / 0", "not finite"),
    ],
)
def test_a_problem_that_cannot_be_run_is_invalid(validate, result: str, words: str) -> None:
    found = validate(SCALE.replace(RESULT, result))
    assert found.verdict is Level.INVALID, found.remarks
    assert words in found.reason
    assert "\n" not in found.reason


@pytest.mark.parametrize(
    ("result", "words"),
    [
        pytest.param("torch.clamp(1e6 * x, -1, 1)", "saturated", marks=pytest.mark.slow),
        ("1e-5 * torch.relu(x)", "0.0001 all zeros, one constant"),
        pytest.param("1e-5 * torch.relu(x)", "of zero", marks=pytest.mark.slow),
        ("torch.relu(x).sum(1, keepdim=True).expand(7, 129) * 1.0", "repeats along axis 1"),
        pytest.param("x.clone()", "a copy of an input", marks=pytest.mark.slow),
    ],
)
def test_what_is_odd_but_can_be_scored_is_noted(validate, result: str, words: str) -> None:
    found = validate(SCALE.replace(RESULT, result))
    assert found.verdict is Level.NOTED, found.remarks
    assert words in " ".join(r.detail for r in found.remarks)


def test_a_problem_that_answers_to_everything_is_sound(validate) -> None:
    found = validate(PAIR.replace("RESULT", SOUND))
    assert found.verdict is Level.SOUND, found.remarks
    [figures] = found.figures
    assert (figures.inputs, figures.parameters, figures.parameters_changed) == (2, 2, 2)
    assert figures.repeats
    assert figures.memory.sets > 0
    assert figures.memory.state >= 2 * 129 * 4
    assert figures.headroom.latency_ms > 0


def test_operations_that_torch_counts_make_a_floor(validate) -> None:
    headroom = validate(LINEAR).figures[0].headroom
    assert headroom.flops == 2 * 5 * 33 * 33
    assert headroom.times is not None


@pytest.mark.parametrize(
    ("result", "words", "level"),
    [
        ("torch.relu(x) * self.weight + self.shift", "input 1", Level.DEGENERATE),
        pytest.param(
            "y * self.weight + self.shift + 0 * x",
            "input 0",
            Level.DEGENERATE,
            marks=pytest.mark.slow,
        ),
        ("torch.relu(x) * self.weight + y", "parameter shift", Level.NOTED),
        pytest.param(
            "(x * self.weight + y).softmax(1) + 0 * self.shift",
            "parameter shift",
            Level.NOTED,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_the_output_ignores_is_named(validate, result: str, words: str, level: Level) -> None:
    found = validate(PAIR.replace("RESULT", result))
    assert found.verdict is level, found.remarks
    assert words in found.reason


def test_an_ignored_input_is_refused_before_any_candidate_is_judged(evaluate: Evaluate) -> None:
    ignores = PAIR.replace("RESULT", "torch.relu(x) * self.weight + self.shift")
    found = evaluate(renamed(ignores), ignores)
    assert found.status is Status.INVALID_REFERENCE, found.detail
    assert "input 1" in found.detail


def test_a_constant_input_is_shaken_before_it_is_called_ignored(validate) -> None:
    fixed = PAIR.replace("RESULT", SOUND).replace(
        "torch.randn(7, 129), torch.randn(7, 129)", "torch.randn(7, 129), torch.ones(7, 129)"
    )
    assert validate(fixed).verdict is Level.SOUND
    for whole, kept in (
        ("torch.ones(7, 129, dtype=torch.int32).tril()", ()),  # a mask, which is moved
        ("torch.arange(903, dtype=torch.int32).view(7, 129)", (1,)),
    ):
        table = fixed.replace("y * self.shift", "self.shift * y")
        found = validate(table.replace("torch.ones(7, 129)", whole))
        assert found.figures[0].fixed_inputs == kept, found.remarks


RELU_OF_UNIT = SCALE.replace("randn", "rand").replace(RESULT, "torch.relu(x)")


def test_a_copy_of_positive_inputs_is_no_relu(evaluate: Evaluate) -> None:
    config = replace(FAST, scales=())
    copies = renamed(RELU_OF_UNIT).replace("torch.relu(x)", "x.clone()")
    found = evaluate(copies, RELU_OF_UNIT, config=config)
    assert found.status is Status.WRONG_VALUE, found.detail
    honest = evaluate(renamed(RELU_OF_UNIT), RELU_OF_UNIT, config=config)
    assert len(honest.cases) >= 3
    assert all(case.passed for case in honest.cases), honest.cases


@pytest.mark.slow
def test_a_task_with_buffers_that_move_is_left_as_it_was(evaluator: LocalEvaluator) -> None:
    norm = LINEAR.replace("self.bias =", "self.norm = nn.BatchNorm1d(n)\n        self.bias =")
    norm = norm.replace("x @ self.weight.T + self.bias", "self.norm(x @ self.weight.T + self.bias)")
    found = evaluator.validate(task_of(norm), FAST)
    # In train mode the mean is subtracted again: the bias in front of it has no influence.
    assert found.verdict is Level.NOTED, found.remarks
    assert found.figures[0].ignored_parameters == ("bias",)
    task = task_of(norm)
    candidate = Candidate(task.id, Language.TORCH, renamed(norm))
    cases = evaluator.evaluate(task, candidate, FAST).cases
    assert len(cases) > 3
    assert all(case.passed for case in cases), cases


FIGURES = ShapeFigures(
    shape="given",
    oracle="float64",
    bound_norm=5e-6,
    aliases=False,
    nulls=(),
    loose={},
    ranges=(OutputRange("float32", 3.0, 1.0, 1.0, (), 0.0),),
    repeat_norm=0.0,
    repeats=True,
    inputs=1,
    ignored_inputs=(),
    fixed_inputs=(),
    parameters=0,
    parameters_changed=0,
    ignored_parameters=(),
    memory=Memory(100, 100, 0, 1 << 30, 8),
    headroom=Headroom(1.0, 0, None),
)


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, Level.SOUND),
        ({"nulls": (NullCandidate.ZEROS,)}, Level.DEGENERATE),
        ({"nulls": (NullCandidate.ONES,)}, Level.DEGENERATE),
        ({"nulls": (NullCandidate.CONSTANT,)}, Level.DEGENERATE),
        ({"nulls": (NullCandidate.PREVIOUS,)}, Level.DEGENERATE),
        ({"nulls": (NullCandidate.ECHO,)}, Level.NOTED),
        ({"nulls": (NullCandidate.ECHO,), "aliases": True}, Level.DEGENERATE),
        ({"nulls": (NullCandidate.STEP_DOWN,)}, Level.NOTED),
        ({"loose": {"0.01": (NullCandidate.ZEROS,)}}, Level.NOTED),
        ({"loose": {"0.01": (NullCandidate.STEP_DOWN,)}}, Level.SOUND),
        ({"repeats": False, "repeat_norm": None}, Level.DEGENERATE),
        ({"ignored_inputs": (0,)}, Level.DEGENERATE),
        ({"fixed_inputs": (0,)}, Level.NOTED),
        ({"parameters": 600, "parameters_changed": 200}, Level.NOTED),
        ({"ignored_parameters": ("a", "b", "c", "d", "e")}, Level.NOTED),
        ({"memory": Memory(100, 100, 0, 1 << 30, 1)}, Level.NOTED),
        ({"headroom": Headroom(1.0, 0, 0.95)}, Level.NOTED),
        ({"headroom": Headroom(1.0, 0, 0.5)}, Level.SOUND),
    ],
)
def test_each_figure_has_its_verdict(change: dict[str, object], level: Level) -> None:
    remarks = remarks_on(replace(FIGURES, **change))  # type: ignore[arg-type]
    assert conclude(remarks)[0] is level
    assert all(remark.detail.startswith("given: ") for remark in remarks)


def test_the_worst_remark_decides() -> None:
    noted, bad = Remark("a", Level.NOTED, "noted"), Remark("b", Level.DEGENERATE, "bad")
    assert conclude([noted, bad]) == (Level.DEGENERATE, "bad")
    assert conclude([]) == (Level.SOUND, "")


@pytest.mark.parametrize("elements", [64, 7])
def test_a_large_output_is_looked_at_in_pieces(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of gigabytes no float64 copy fits beside the cases; what is told is the same."""
    truth = torch.randn(1, 8, 6, dtype=torch.float64).expand(9, 8, 6).contiguous()
    truth[0, 0, :4] = truth.max() + 1
    truth[1:, 0, :4] = truth[0, 0, :4]
    bound = Errors(1e-5, 4e-5, 1e-4)
    whole = output_range("float32", truth, truth.flip(1), bound)
    accepts = nulls.by_tolerance(0.01)
    monkeypatch.setattr(compare, "CHUNK_ELEMENTS", elements)
    pieces = output_range("float32", truth, truth.flip(1), bound)
    assert pieces.constant_axes == whole.constant_axes == (0,)
    assert pieces.saturated == whole.saturated == pytest.approx(5 / 48)
    assert (pieces.max_abs, pieces.std, pieces.fresh_std) == (
        whole.max_abs,
        pytest.approx(whole.std),
        pytest.approx(whole.fresh_std),
    )
    assert accepts(truth * 1.005, truth, bound)
    wrong = truth.clone()
    wrong[-1, -1, -1] += 1
    assert not accepts(wrong, truth, bound)


def test_what_is_infinite_by_design_counts_as_zero() -> None:
    truth = torch.randn(8, 6, dtype=torch.float64)
    masked = truth.masked_fill(truth > 0.5, -math.inf).masked_fill(truth < -0.5, math.nan)
    bound = Errors(1e-5, 4e-5, 1e-4)
    found = output_range("float32", masked, masked.flip(0), bound)
    zeroed = masked.nan_to_num(0.0, 0.0, 0.0)
    assert found == output_range("float32", zeroed, zeroed.flip(0), bound)
    assert math.isfinite(found.std)
