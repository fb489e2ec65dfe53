"""Calls that go past torch's dispatcher: which do, and that nobody can tell by the results."""

import gc
import hashlib
import json
import math
import weakref
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from agent.export.overhead import operator_ms, probe
from agent.export.runtime import direct, models
from agent.export.runtime.machine import machine
from agent.export.runtime.operators import Custom
from agent.export.runtime.records import Kernel, Operator, Row
from agent.export.runtime.signature import signature_of

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))
    def forward(self, x):
        return torch.sin(x) * self.weight
"""
KERNEL = REFERENCE.replace("Model(", "ModelNew(").replace("torch.sin(x) *", "x.sin() *")
SCALED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, scale):
        return x * scale
"""
DEFINED = iter(range(100))


def custom(folder: Path, reference: str, kernel: str, arguments, **changes) -> Custom:
    """An operator with a kernel for these arguments, the last of them its parameters."""
    for name, text in (("reference.py", reference), ("kernel.py", kernel)):
        (folder / name).write_text(text)
    sha256 = hashlib.sha256(kernel.encode()).hexdigest()
    signature = signature_of("cpu", arguments, "[]")
    row = Row("k", machine("cpu"), signature, "", "active", None, "eager", None, "-", "a test")
    fields = {
        "name": "tested",
        "namespace": f"direct_{next(DEFINED)}",
        "task_id": "test/tested",
        "dtype": "float32",
        "inputs": (("x", "Tensor"),),
        "state": ("weight",),
        "init": "[]",
        "outputs": None,
        "autograd": "recompute",
        "reference": "reference.py",
        "reference_sha256": hashlib.sha256(reference.encode()).hexdigest(),
        "kernels": (Kernel("k", "kernel.py", sha256, "triton", "name"),),
        "rows": (row,),
    }
    return Custom("direct_tests", folder, Operator(**(fields | changes)))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def op(tmp_path) -> Custom:
    return custom(tmp_path, REFERENCE, KERNEL, inputs())


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 4), torch.randn(4)


class Seen(TorchDispatchMode):
    """Notes every operator that torch's dispatcher is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def names_in_a_profile(op: Custom, *arguments) -> set[str]:
    with torch.profiler.profile() as seen:
        op(*arguments)
    return {event.name for event in seen.events()}


def test_a_call_that_nobody_watches_is_computed_at_once(op, monkeypatch):
    monkeypatch.setattr(op, "op", None)  # the dispatcher's
    x, weight = inputs()
    torch.testing.assert_close(op(x, weight), torch.sin(x) * weight)
    torch.testing.assert_close(op(x[:3], weight), torch.sin(x[:3]) * weight)
    assert op.dispatch.counts.read() == {"kernel": 1, "not measured here": 1}


def test_modes_and_profiles_see_the_operator(op):
    x, weight = inputs()
    with Seen() as seen:
        op(x, weight)
    assert op.qualified in seen.names
    assert op.qualified in names_in_a_profile(op, x, weight)
    assert op.dispatch.counts.read() == {"kernel": 2}


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_transforms_and_traces_see_the_operator(op):
    x, weight = inputs()
    graph = torch.jit.trace(lambda x: op(x, weight), x).graph
    assert op.qualified in str(graph)
    watched = []
    torch.func.vmap(lambda row: watched.append(direct.watched()) or row)(x)
    assert watched == [True]
    assert not direct.watched()


def test_a_subclass_decides_for_itself(op):
    class Noting(torch.Tensor):
        seen: list[str] = []  # noqa: RUF012  of one test

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    x, weight = inputs()
    op(x.as_subclass(Noting), weight)
    assert any(op.operator.name in name for name in Noting.seen)


def test_arguments_that_the_schema_converts_are_the_dispatchers(tmp_path):
    arguments = torch.randn(4), 2.0
    fields = {"inputs": (("x", "Tensor"), ("scale", "float")), "state": ()}
    op = custom(tmp_path, SCALED, SCALED.replace("Model(", "ModelNew("), arguments, **fields)
    for scale in (2.0, 2):  # the schema makes a float of an int
        torch.testing.assert_close(op(arguments[0], scale), arguments[0] * 2)
    assert op.dispatch.counts.read() == {"kernel": 2}
    with pytest.raises(RuntimeError, match="expected at most 3"):
        op(*arguments, 1.0)


def test_gradients_past_the_dispatcher_are_its_own(op):
    x, weight = (t.requires_grad_() for t in inputs())
    away = torch.randn(8, 4)
    for rows in (8, 5):  # the kernel's call, then the reference's
        given = x[:rows]
        [wanted] = torch.autograd.grad((op.op(given, weight, "[]") * away[:rows]).sum(), weight)
        [found] = torch.autograd.grad((op(given, weight) * away[:rows]).sum(), weight)
        torch.testing.assert_close(found, wanted)
        assert not found.requires_grad
    assert op.dispatch.counts.read() == {"kernel": 2, "not measured here": 2}


def test_a_fallback_is_differentiated_as_the_reference_is(op):
    x = torch.randn(3, 4, requires_grad=True)
    weight = torch.ones(4)
    [first] = torch.autograd.grad(op(x, weight).sum(), x, create_graph=True)
    [second] = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, -torch.sin(x))


def test_forward_mode_gradients_are_the_references(op):
    x, weight = inputs()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found = forward_ad.unpack_dual(op(dual, weight)).tangent
    torch.testing.assert_close(found, torch.cos(x) * weight)
    assert op.dispatch.counts.read() == {"forward-mode gradients": 1}


@pytest.mark.parametrize(
    "watched", [torch.autocast("cpu", dtype=torch.bfloat16), Seen(), torch.profiler.profile()]
)
def test_forward_mode_gradients_are_the_references_whoever_watches(op, watched):
    x, weight = inputs()
    with forward_ad.dual_level(), watched:
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        found = forward_ad.unpack_dual(op(dual, weight)).tangent
    torch.testing.assert_close(found, torch.cos(x) * weight)


@pytest.mark.parametrize("compiled", [False, True])
def test_forward_mode_gradients_that_torch_would_drop_are_an_error(op, compiled):
    x, weight = inputs()

    def tangent(x):
        return torch.func.jvp(lambda x: op.op(x, weight, "[]"), (x,), (torch.ones_like(x),))[1]

    with pytest.raises(RuntimeError, match="no forward-mode gradients"):
        (torch.compile(tangent, backend="aot_eager") if compiled else tangent)(x)


@pytest.mark.filterwarnings("error:.*performance drop:UserWarning")
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.vmap(f)(torch.stack([x, 2 * x])),
        lambda f, x: torch.func.grad(lambda x: f(x).pow(2).sum())(x),
        lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
        lambda f, x: torch.func.hessian(lambda x: f(x).pow(2).sum())(x),
        lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(x.expand(2, 8, 4)),
    ],
    ids=["vmap", "grad", "jvp", "hessian", "vmap of grad"],
)
def test_transforms_are_the_references(op, transform):
    x, weight = inputs()
    found = transform(lambda x: op(x, weight), x)
    torch.testing.assert_close(found, transform(lambda x: torch.sin(x) * weight, x))
    assert "kernel" not in op.dispatch.counts.read()


@pytest.mark.parametrize("past", [True, False])
def test_a_kernels_gradient_has_the_references_gradient(op, past):
    """A penalty on it: no part of what is differentiated again may be taken for a constant."""
    x, weight = (t.requires_grad_() for t in inputs())

    def penalty(f) -> torch.Tensor:
        [first] = torch.autograd.grad(f(x * 2, weight).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum() + first.sum(), (x, weight))

    found = penalty(op if past else lambda x, weight: op.op(x, weight, "[]"))
    torch.testing.assert_close(found, penalty(lambda x, weight: torch.sin(x) * weight))
    assert op.dispatch.counts.read() == {"kernel": 1}


def test_another_default_dtype_is_not_what_was_measured(tmp_path):
    kernel = KERNEL.replace("return x.sin()", "return torch.empty(8, 4).copy_(x.sin())")
    op, (x, weight) = custom(tmp_path, REFERENCE, kernel, inputs()), inputs()
    torch.set_default_dtype(torch.float64)
    try:
        found = op(x, weight)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, torch.sin(x) * weight)
    assert op.dispatch.counts.read() == {"another default dtype": 1}


@pytest.mark.parametrize("past", [True, False])
def test_a_kernel_makes_its_tensors_where_it_was_measured(tmp_path, past):
    """Another device by default, say: what it writes through pointers has to be there."""
    kernel = KERNEL.replace("return x.sin()", "return SCALE * torch.empty(8, 4).copy_(x.sin())")
    kernel = kernel.replace("class", "SCALE = torch.tensor(1.0)\nclass", 1)
    op, (x, weight) = custom(tmp_path, REFERENCE, kernel, inputs()), inputs()
    with torch.device("meta"):
        found = op(x, weight) if past else op.op(x, weight, "[]")
        assert torch.empty(1).is_meta
    torch.testing.assert_close(found, torch.sin(x) * weight)
    assert op.dispatch.counts.read() == {"kernel": 1}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_sizes_goes_to_the_reference(op):
    rows = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)])
    found = op(rows, torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)]))
    for row, one in zip(rows.unbind(), found.unbind(), strict=True):
        torch.testing.assert_close(one, row.sin())
    assert op.dispatch.counts.read() == {"not measured here": 1}


def test_an_operator_for_inference_only_still_raises_in_its_backward_pass(tmp_path):
    op = custom(tmp_path, REFERENCE, KERNEL, inputs(), autograd="none")
    x, weight = inputs()
    with torch.no_grad():
        op(x, weight)
    found = op(x.requires_grad_(), weight)
    with pytest.raises(RuntimeError, match="is for inference only"):
        found.sum().backward()


def test_a_result_that_is_an_argument_is_copied(tmp_path):
    text = REFERENCE.replace("torch.sin(x) * self.weight", "x")
    op = custom(tmp_path, text, text.replace("Model(", "ModelNew("), inputs())
    x, weight = inputs()
    for given in (x, x[:3]):
        found = op(given, weight)
        assert torch.equal(found, given)
        assert found.data_ptr() != given.data_ptr()
    assert op.dispatch.counts.read() == {"kernel": 1, "not measured here": 1}


def test_two_results_never_share_memory(tmp_path):
    text = REFERENCE.replace(
        "return torch.sin(x) * self.weight", "y = x.sin(); return y, y.view(-1)"
    )
    kernel = text.replace("Model(", "ModelNew(")
    op = custom(tmp_path, text, kernel, inputs(), outputs=2)
    for rows in (8, 3):
        one, other = op(torch.randn(rows, 4), torch.randn(4))
        assert torch.equal(one.view(-1), other)
        assert one.data_ptr() != other.data_ptr()


def test_a_negation_that_is_pending_is_not_read_past(op):
    x, weight = inputs()
    torch.testing.assert_close(op(torch._neg_view(x), weight), torch.sin(-x) * weight)
    assert op.dispatch.counts.read() == {"negation pending": 1}


def test_tensors_on_several_devices_never_reach_a_kernel(op):
    x, weight = inputs()
    op.dispatch.find((x, weight.to("meta")), "[]", x.device)
    assert op.dispatch.counts.read() == {"on several devices": 1}


def test_a_kernel_that_fails_is_left_out_for_every_signature(tmp_path, caplog):
    broken = KERNEL.replace("return", "raise ValueError('no')\n        return")
    op = custom(tmp_path, REFERENCE, broken, inputs())
    x, weight = inputs()
    for t in (weight, weight.clone().requires_grad_()):
        torch.testing.assert_close(op(x, t), torch.sin(x) * t)
    assert op.dispatch.counts.read() == {"kernel": 1, "kernel broken": 1}
    assert len(caplog.records) == 1


def test_a_kernel_that_fails_in_several_threads_at_once_is_told_of_once(op, caplog):
    inside = op.dispatch.find(inputs(), "[]", torch.device("cpu"))
    for _ in range(2):  # both were in the kernel when it failed
        op.dispatch.give_up(inside.row.kernel, ValueError("no"))
    assert inside.loaded is None
    assert len(caplog.records) == 1


def test_a_kernel_draws_no_gradients_and_leaves_the_mode_as_it_was(op):
    x, weight = inputs()
    assert not op(x, weight.requires_grad_(False)).requires_grad
    assert torch.is_grad_enabled()
    with torch.no_grad():
        op(x, weight)
        assert not torch.is_grad_enabled()


def test_the_reference_holds_a_callers_parameters_during_the_call_alone(op):
    weight = torch.randn(4)
    gone = weakref.ref(weight)
    op(torch.randn(3, 4), weight)
    del weight
    gc.collect()
    assert gone() is None


def test_a_stateless_module_takes_tied_tensors_and_puts_its_own_back_after_an_error():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    own = model[0].weight
    call = models.Stateless(model, models.state_names(model))
    weight, bias = torch.randn(4, 4), torch.randn(4)
    x = torch.randn(2, 4)
    wanted = torch.func.functional_call(model, {"0.weight": weight, "1.bias": bias}, (x,))
    torch.testing.assert_close(call((x,), (weight, bias)), wanted)
    with pytest.raises(RuntimeError):
        call((torch.randn(2, 5),), (weight, bias))
    assert model[0].weight is model[1].weight is own


@pytest.mark.parametrize("ordered", [False, True])
def test_the_probe_of_what_a_call_costs_is_an_operator_with_a_kernel(ordered):
    with probe("cpu", inputs=2, state=3, ordered=ordered) as made:
        wanted = torch.relu(made.hit[0])
        assert torch.equal(made.custom(*made.hit), wanted)
        assert torch.equal(made.custom(*made.miss), wanted[: len(made.miss[0])])
        assert torch.equal(made.kernel(*made.hit[:2]), wanted)
        counts = made.custom.dispatch.counts.read()
        chosen = made.custom.dispatch.find(made.hit, "[]", torch.device("cpu"))
    assert counts == {"kernel": 1, "not measured here": 1}
    assert (chosen.order is not None) == ordered
    assert 0 <= operator_ms("cpu", ordered=ordered) < math.inf


def test_the_key_of_a_call_is_what_the_library_wrote(op):
    [row] = op.operator.rows
    assert json.loads(row.signature)[:2] == ["cpu", "[]"]
    assert op.dispatch.find(inputs(), "[]", torch.device("cpu")) is not None
