"""Every built-in problem can be scored: it runs, repeats, and no candidate wins it blindly."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kernelbench.suite import load_tasks
from sandbox.types import Shape, Task

TASKS = {device: load_tasks("builtin", device) for device in ("cpu", "cuda")}


def cases(device: str) -> pytest.MarkDecorator:
    sized = [(task, shape) for task in TASKS[device] for shape in task.shapes]
    names = [f"{task.id.removeprefix('builtin/')}-{shape.name}" for task, shape in sized]
    return pytest.mark.parametrize(("task", "shape"), sized, ids=names, scope="module")


def problems(device: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("task", TASKS[device], ids=lambda task: task.id)


def execute(task: Task, shape: Shape) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "reference"}
    exec(task.source, names)
    names.update(shape.constants)
    return names


class Run:
    """A problem's model and input sets, made as the sandbox makes them."""

    def __init__(self, task: Task, shape: Shape) -> None:
        self.names, self.task = execute(task, shape), task
        self.dtype = getattr(torch, task.dtype)
        torch.manual_seed(0)
        model = self.names["Model"](*self.names["get_init_inputs"]())
        self.model = model.to(task.device, self.dtype)

    def inputs(self, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        with torch.device(self.task.device):
            made = self.names["get_inputs"]()
        return [t.to(self.dtype) if t.is_floating_point() else t for t in made]

    def output(self, seed: int) -> torch.Tensor:
        with torch.no_grad():
            return self.model(*self.inputs(seed))

    @cached_property
    def truth(self) -> torch.Tensor:
        return self.output(seed=1)

    @cached_property
    def other(self) -> torch.Tensor:
        return self.output(seed=2)


@pytest.fixture(scope="module")
def run(task: Task, shape: Shape) -> Run:
    """One for all tests of a case, which come one after the other."""
    return Run(task, shape)


NULL_CANDIDATES: dict[str, Callable[[Run, torch.Tensor], torch.Tensor]] = {
    "zeros": lambda run, truth: torch.zeros_like(truth),
    "constant": lambda run, truth: torch.full_like(truth, truth.median().item()),
    "row constant": lambda run, truth: truth[:1].expand_as(truth),
    "previous output": lambda run, truth: run.other.double(),
}


@cases("cpu")
def test_output_repeats_and_differs_between_inputs(run: Run) -> None:
    assert torch.equal(run.output(seed=1), run.truth)
    assert not torch.equal(run.truth, run.other)


@cases("cpu")
def test_null_candidates_fail_even_at_the_loosest_tolerance(run: Run) -> None:
    truth = run.truth.double()
    for name, candidate in NULL_CANDIDATES.items():
        guess = candidate(run, truth)
        assert not torch.allclose(guess, truth, rtol=1e-2, atol=1e-2), name


@cases("cpu")
def test_float64_result_is_finite_and_close(run: Run) -> None:
    inputs = [t.double() if t.is_floating_point() else t for t in run.inputs(seed=1)]
    with torch.no_grad():
        truth = copy.deepcopy(run.model).double()(*inputs).double()
    error = (run.truth.double() - truth).norm() / truth.norm()
    assert truth.isfinite().all()
    assert error < 1e-5


@cases("cpu")
def test_inputs_are_not_mutated_and_output_is_fresh(run: Run) -> None:
    inputs = run.inputs(seed=1)
    with torch.no_grad():
        output = run.model(*inputs)
    owners = {t.untyped_storage().data_ptr() for t in [*inputs, *run.model.parameters()]}
    assert all(map(torch.equal, inputs, run.inputs(seed=1)))
    assert output.untyped_storage().data_ptr() not in owners


@problems("cpu")
def test_problem_is_traceable_without_data(task: Task) -> None:
    run = Run(task, task.shapes[1])
    with torch.no_grad():
        traced = make_fx(run.model, tracing_mode="fake", _allow_non_fake_inputs=True)
        assert len(traced(*run.inputs(seed=1)).graph.nodes) >= 3


@problems("cuda")
def test_defaults_are_the_timed_gpu_shape(task: Task) -> None:
    names = execute(task, Shape("defaults"))
    assert {name: names[name] for name, _ in task.shapes[0].constants} == dict(
        task.shapes[0].constants
    )


@problems("cpu")
def test_module_level_holds_literals_only(task: Task) -> None:
    """A size derived at module level would not follow an override."""
    for node in ast.parse(task.source).body:
        if isinstance(node, ast.Assign):
            ast.literal_eval(node.value)
        else:
            assert isinstance(
                node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
            ) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_problem_has_a_docstring_and_two_shapes(device: str) -> None:
    for task in TASKS[device]:
        assert "Expected bound:" in (ast.get_docstring(ast.parse(task.source)) or ""), task.id
        names = [shape.name for shape in task.shapes]
        assert len(set(names)) == len(names) >= 2, task.id


def test_some_gpu_problems_are_in_half_precision() -> None:
    half = {t.id: t.dtype for t in TASKS["cuda"] if t.dtype != "float32"}
    assert len(half) >= 4
    assert set(half.values()) == {"float16", "bfloat16"}
    assert {task.dtype for task in TASKS["cpu"]} == {"float32"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@cases("cuda")
def test_gpu_output_is_finite_and_beats_null_candidates(task: Task, shape: Shape) -> None:
    run = Run(task, shape)
    truth = run.output(seed=1).double()
    assert truth.isfinite().all()
    for name, candidate in NULL_CANDIDATES.items():
        guess = candidate(run, truth)
        assert not torch.allclose(guess, truth, rtol=1e-2, atol=1e-2), name
