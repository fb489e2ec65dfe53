"""Tracing a reference in a child process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sandbox.errors import TaskError
from sandbox.graph import Ref, trace, trace_ahead, trace_all
from sandbox.tracer import TRACER
from sandbox.types import Shape, Task

SOURCE = """
import torch
ROWS = 4
print("references may print")
class Model(torch.nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = torch.nn.LayerNorm(cols)
        self.register_buffer("shift", torch.ones(cols))
    def forward(self, x, t, factor):
        return self.norm(x) * factor + self.shift, t + 1
def get_inputs():
    return [torch.rand(ROWS, 1 << 20), torch.randint(0, 9, (ROWS,)), 2.0]
def get_init_inputs():
    return [1 << 20]
"""


@pytest.mark.slow
def test_placeholders_say_where_they_come_from() -> None:
    graph = trace(Task("t", SOURCE, "cpu"))
    found = [(n.op, n.target) for n in graph.nodes if n.target]
    assert found == [
        ("input", "0"), ("input", "1"), ("parameter", "norm.weight"),
        ("parameter", "norm.bias"), ("buffer", "shift"),
    ]  # fmt: skip
    assert graph.scalars == (2,)
    assert isinstance(graph.result, tuple)
    assert all(isinstance(r, Ref) for r in graph.result)


def test_floats_are_cast_and_integers_are_not() -> None:
    graph = trace(Task("t", SOURCE, "cuda", dtype="bfloat16"))
    dtypes = {n.target: n.meta.dtype for n in graph.nodes if n.target}
    assert dtypes == {"0": "bfloat16", "1": "int64", "norm.weight": "bfloat16",
                      "norm.bias": "bfloat16", "shift": "bfloat16"}  # fmt: skip


def test_what_forward_makes_of_numbers_is_told() -> None:
    body = "return x * torch.tensor(0.5) + torch.tensor([1.0]), t + torch.tensor(3)"
    source = SOURCE.replace("return self.norm(x) * factor + self.shift, t + 1", body)
    found = [n.args for n in trace(Task("t", source, "cpu")).nodes if n.op == "constant"]
    assert found == [(0.5,), (), (3,)]


def test_operators_name_their_statement_and_equal_ones_are_told_apart() -> None:
    body = """y = self.norm(
            x
        )
        y = torch.abs(y) + 1
        y = torch.abs(y) + 1
        return self.shifted(y), t

    def shifted(self, y):
        return y * 2"""
    source = SOURCE.replace("return self.norm(x) * factor + self.shift, t + 1", body)
    graph = trace(Task("t", source, "cpu"))
    found = [n.statement for n in graph.nodes if n.op.startswith("aten.")]
    assert list(dict.fromkeys(found)) == [
        "1: y = self.norm( x )",
        "2: y = torch.abs(y) + 1",
        "3: y = torch.abs(y) + 1",
        "4: return self.shifted(y), t",
    ]
    assert {n.statement for n in graph.nodes if n.target} == {""}


def test_terabyte_shapes_cost_nothing() -> None:
    shapes = (Shape("a"), Shape("b", (("ROWS", 1 << 18),)))
    first, second = trace_all(Task("t", SOURCE, "cuda", shapes=shapes))
    assert first.nodes[0].meta.shape == (4, 1 << 20)
    assert second.nodes[0].meta.numel == 1 << 38
    assert [n.op for n in first.nodes] == [n.op for n in second.nodes]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("self.norm(x)", "self.missing(x)", "missing"),
        ("self.norm(x)", "x[: int(x.sum())]", "cannot be traced"),
        ("class Model", "class Other", "Model"),
        ("import torch", "import torch; import sys; sys.exit(3)", "cannot be traced"),
        ("import torch", "import torch; import os; os._exit(7)", "ended with status 7"),
    ],
)
def test_a_failing_reference_is_a_task_error(old: str, new: str, words: str) -> None:
    with pytest.raises(TaskError, match=words) as caught:
        trace(Task("t", SOURCE.replace(old, new, 1), "cpu"))
    assert "\n" not in str(caught.value)


def test_what_a_reference_prints_is_no_reply() -> None:
    assert trace(Task("t", SOURCE.replace("import torch", "import torch; print('{}')", 1), "cpu"))


@pytest.mark.slow
def test_a_tracing_process_that_has_ended_is_started_again() -> None:
    trace(Task("t", SOURCE + "# before", "cpu"))
    assert TRACER._process is not None
    TRACER._process.kill()
    assert trace(Task("t", SOURCE + "# after", "cpu"))


def test_several_are_traced_at_once_as_one_by_one(monkeypatch, tmp_path) -> None:
    shapes = (Shape("a"), Shape("b", (("ROWS", 6),)))
    tasks = [Task("t", SOURCE + "# both", "cpu", dtype, shapes) for dtype in ("float32", "half")]
    broken = Task("t", SOURCE.replace("class Model", "class Other", 1), "cpu")
    alone = [trace_all(task) for task in tasks]
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path))
    trace_ahead([tasks[0], broken, tasks[1]])
    monkeypatch.setattr(TRACER, "ask", None)  # Nothing is left to ask for.
    assert [trace_all(task) for task in tasks] == alone
    trace_ahead(tasks)
    monkeypatch.undo()
    with pytest.raises(TaskError, match="Model"):
        trace_all(broken)


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys, sandbox.graph; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
