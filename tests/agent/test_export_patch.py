"""A library's operators inside a user's model: where they fit, what they leave alone, and back."""

import copy
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from agent.export.artefact import gather
from agent.export.package import export_package
from tests.agent.export_library import cpp_campaign

NAME = "patching_kernels"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """`bias_relu`: torch.relu(x + bias) of float32 (64, 32) and (32,)."""
    folder = tmp_path_factory.mktemp("library")
    run = cpp_campaign(folder / "run", bias_relu="speedup=3.0", signs="speedup=1.6")
    export_package(gather([run], "Apache-2.0"), folder / "out", NAME)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patched.syspath_prepend(str(folder / "out" / "source"))
        yield importlib.import_module(NAME)
    for name in [n for n in sys.modules if n.partition(".")[0] == NAME]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _compiled_anew():
    """Dynamo compiles one function so many times alone, and patched models share theirs."""
    torch.compiler.reset()


class Written(nn.Module):
    """The operator twice, spelt differently, beside one of another shape."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 32)
        self.shift1 = nn.Parameter(torch.randn(32))
        self.shift2 = nn.Parameter(torch.randn(32))
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5)

    def forward(self, x):
        y = self.act(self.first(x) + self.shift1)
        z = torch.relu(self.shift2 + self.drop(self.second(y)))
        return z, torch.relu(y[:7] + self.shift1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Written().eval()


def x():
    return torch.randn(64, 16, generator=torch.Generator().manual_seed(1))


def used(kernels) -> int:
    return kernels.counts()["bias_relu"].get("kernel", 0)


def same(found, wanted) -> bool:
    return all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))


@pytest.mark.slow
def test_both_spellings_are_replaced_and_the_result_stays(kernels, model):
    wanted, before = model(x()), used(kernels)
    patch = kernels.patch(model, x())
    assert same(model(x()), wanted)
    assert used(kernels) == before + 4  # two at the first call, two at this one
    assert [p.module for p in patch.replaced] == ["", ""]
    patch.unpatch()


def test_what_does_not_fit_is_told_with_its_reason(kernels, model):
    patch = kernels.patch(model, x())
    told = [p.state for p in patch.places if not p.replaced]
    assert told == ["measured float32[64,32], here float32[7,32]"]
    assert patch.reasons() == {"signs": "nothing in the model has its graph"}
    assert "signs: nothing in the model has its graph" in str(patch)
    patch.unpatch()


def test_parameters_are_read_at_every_call(kernels, model):
    patch = kernels.patch(model, x())
    with torch.no_grad():
        model.shift1.add_(1.0)
    model.shift2 = nn.Parameter(torch.randn(32))
    found = model(x())
    patch.unpatch()
    assert same(found, model(x()))


def test_gradients_are_those_of_the_model(kernels, model):
    def gradients():
        return torch.autograd.grad(model(x())[0].square().sum(), list(model.parameters()))

    patch = kernels.patch(model, x())
    found = gradients()
    patch.unpatch()
    for new, old in zip(found, gradients(), strict=True):
        torch.testing.assert_close(new, old)


def test_unpatch_gives_the_models_own_forward_back(kernels, model):
    kernels.patch(model, x())
    kernels.unpatch(model)
    assert "forward" not in vars(model)
    before = used(kernels)
    model(x())
    assert used(kernels) == before
    kernels.unpatch(model)  # a second time, nothing happens


def test_without_inputs_the_first_call_decides(kernels, model):
    patch = kernels.patch(model)
    assert patch.places == []
    model(x())
    assert len(patch.replaced) == 2
    patch.unpatch()


def test_train_mode_autocast_hooks_and_other_shapes_are_the_models_own(kernels, model):
    patch = kernels.patch(model, x())
    before, seen = used(kernels), []
    model(x()[:5])
    with torch.autocast("cpu", torch.bfloat16):
        model(x())
    hook = model.second.register_forward_hook(lambda *_: seen.append(1))
    model(x())
    hook.remove()
    model.train()
    model(x())
    assert (used(kernels), seen) == (before, [1])
    model.eval()
    model(x())
    assert used(kernels) == before + 2
    patch.unpatch()


def test_a_model_that_was_changed_runs_its_own_forward(kernels, model):
    patch = kernels.patch(model, x())
    before = used(kernels)
    model.second = nn.Linear(32, 32)
    found = model(x())
    patch.unpatch()
    assert used(kernels) == before
    assert same(found, model(x()))


class Scaled(nn.Module):
    """Keeps what its graph has as constants."""

    def __init__(self):
        super().__init__()
        self.act, self.scale, self.sizes = nn.LeakyReLU(0.1), 2.0, torch.ones(3)
        self.shift, self.only = nn.Parameter(torch.randn(32)), nn.Module()
        self.only._offset = torch.zeros(2)

    def forward(self, x, more=None, *, twice=False):
        y = (
            self.act(torch.relu(x + self.shift)) * self.scale
            - self.sizes.sum()
            + self.only._offset[0]
        )
        y = y if more is None else y * more
        return (y * 2, y) if twice else (y,)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "scale", 5.0),
        lambda model: setattr(model.act, "negative_slope", 0.5),
        lambda model: setattr(model.only, "_offset", torch.ones(2)),
        lambda model: setattr(model, "sizes", torch.zeros(3)),
        lambda model: delattr(model, "scale") or setattr(type(model), "scale", 3.0),
    ],
    ids=["scale", "inner", "private", "tensor", "deleted"],
)
@pytest.mark.slow
def test_a_model_whose_attributes_were_changed_runs_its_own_forward(kernels, change, compiled):
    model, given = type("Its", (Scaled,), {})().eval(), torch.randn(64, 32)
    patch = kernels.patch(model, given)
    call = torch.compile(model, backend="aot_eager") if compiled else model
    model.scale = float("2")  # equal: nothing changed
    before = used(kernels)
    call(given)
    assert used(kernels) > before
    change(model)
    before = used(kernels)
    found = call(given)
    assert used(kernels) == before
    patch.unpatch()
    assert same(found, model(given))


@pytest.mark.parametrize("bound", [False, True], ids=["plain", "forward of its own"])
def test_hooks_of_the_model_itself_run_once(kernels, model, bound):
    if bound:
        model.second.forward = model.second.forward
    model.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    model.register_forward_hook(lambda module, given, found: tuple(f * 3 for f in found))
    wanted, before = model(x()), used(kernels)
    patch = kernels.patch(model, x())
    assert same(model(x()), wanted)
    assert used(kernels) == before + 4
    patch.unpatch()
    assert same(model(x()), wanted)


def test_other_threads_may_call_a_model_while_it_is_traced(kernels):
    class Busy(nn.Module):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.randn(32))

        def forward(self, x):
            if isinstance(x, FakeTensor):
                with ThreadPoolExecutor(1) as other:
                    calls.append(other.submit(model, given).result())
            return torch.relu(x + self.shift)

    model, given, calls = Busy().eval(), torch.randn(64, 32), []
    patch = kernels.patch(model, given)
    assert len(calls) == 2  # it is traced with gradients and without
    for found in calls:
        assert type(found) is torch.Tensor
        assert torch.equal(found, torch.relu(given + model.shift))
    assert patch.replaced
    patch.unpatch()


def test_parameters_that_are_found_by_another_way_are_followed(kernels):
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(32, 32)
            self.parts = [self.inner]
            self.shift = nn.Parameter(torch.randn(32))

        def forward(self, x):
            return torch.relu(self.parts[0](x) + self.shift)

    model, given = Listed().eval(), torch.randn(64, 32)
    patch = kernels.patch(model, given)
    assert patch.replaced
    model.inner.weight = nn.Parameter(torch.randn(32, 32))
    found = model(given)
    patch.unpatch()
    assert torch.equal(found, model(given))


def test_an_exported_graph_is_a_model_too(kernels, model):
    exported = torch.export.export(model, (x(),)).module()
    patch, before = kernels.patch(exported, x()), used(kernels)
    assert same(exported(x()), model(x()))
    assert used(kernels) == before + 2
    patch.unpatch()


class Spoken(nn.Module):
    """Its inputs say nothing of the dtype that its parameters have."""

    def __init__(self):
        super().__init__()
        self.table, self.shift = nn.Embedding(9, 32), nn.Parameter(torch.randn(32))

    def forward(self, words):
        return torch.relu(self.table(words).to(self.shift.dtype) + self.shift)


def test_a_model_that_was_cast_runs_its_own_forward(kernels):
    model, words = Spoken().eval(), torch.arange(64) % 9
    patch = kernels.patch(model, words)
    assert len(patch.replaced) == 1
    found = model.bfloat16()(words)
    patch.unpatch()
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, model(words))


class Rewriting(nn.Module):
    """What a write in place leaves is what later operations see."""

    def forward(self, x, bias):
        y = x * 2
        y += bias
        z = torch.relu_(y)
        z += 1.0
        return z, y


def test_writes_in_place_are_followed(kernels):
    model = Rewriting().eval()
    given = torch.randn(64, 32), torch.randn(32)
    wanted = model(*given)
    patch = kernels.patch(model, *given)
    assert [p.nodes for p in patch.replaced] == [("add_", "relu_")]
    assert same(model(*given), wanted)
    patch.unpatch()


class Shared(nn.Module):
    def forward(self, x, bias):
        shifted = x + bias
        return torch.relu(shifted), shifted


class Mutating(nn.Module):
    def forward(self, x, bias):
        return torch.relu(x.add_(bias))


def test_an_intermediate_that_is_used_elsewhere_stays(kernels):
    model = Shared().eval()
    given = torch.randn(64, 32), torch.randn(32)
    patch = kernels.patch(model, *given)
    assert [p.state for p in patch.places] == ["add, an intermediate result, is used elsewhere"]
    patch.unpatch()


def test_a_model_that_writes_to_its_inputs_is_left_alone(kernels):
    model = Mutating().eval()
    patch = kernels.patch(model, torch.randn(64, 32), torch.randn(32))
    assert patch.untraceable == {"": "it changes its inputs or buffers"}
    patch.unpatch()


class Deciding(nn.Module):
    """torch.export refuses it: its control flow depends on values."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Written(), Written()])

    def forward(self, x):
        return self.parts[0](x) if x.sum() > 0 else self.parts[1](x)


def test_where_the_model_cannot_be_traced_its_parts_are(kernels):
    model = Deciding().eval()
    high, low = x().abs(), -x().abs()
    wanted = model(high), model(low)
    patch = kernels.patch(model, high)
    assert {p.module for p in patch.replaced} == {"parts.0"}
    assert same(model(low), wanted[1])
    assert {p.module for p in patch.replaced} == {"parts.0", "parts.1"}
    assert same(model(high), wanted[0])
    assert "torch.export" in patch.untraceable[""]
    patch.unpatch()
    assert all("forward" not in vars(m) for m in model.modules())


def test_a_patched_model_cannot_be_patched_copied_or_pickled(kernels, model):
    patch = kernels.patch(model, x())
    with pytest.raises(kernels.LibraryError, match="patched already"):
        kernels.patch(model, x())
    with pytest.raises(TypeError, match="unpatch it first"):
        copy.deepcopy(model)
    patch.unpatch()
    copy.deepcopy(model)


def test_a_call_that_fails_leaves_the_model_as_it_was(kernels, model):
    with pytest.raises(RuntimeError):
        kernels.patch(model, torch.randn(64, 17))
    assert "forward" not in vars(model)


def test_kernels_that_are_switched_off_are_not_put_in(kernels, model):
    kernels.switch("bias_relu", on=False)
    patch = kernels.patch(model, x(), only=["bias_relu"])
    kernels.switch("bias_relu", on=True)
    assert patch.reasons() == {"bias_relu": "its kernels are switched off"}
    assert "forward" not in vars(model)


@pytest.mark.slow
def test_a_patched_model_compiles(kernels, model):
    wanted = model(x())
    patch = kernels.patch(model, x())
    before = used(kernels)
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(x())
    assert same(found, wanted)
    assert used(kernels) > before
    patch.unpatch()


@pytest.mark.slow
def test_a_patched_model_that_was_called_in_every_way_compiles(kernels):
    model, given = Scaled().eval(), torch.randn(64, 32)
    patch = kernels.patch(model, given)
    ways = [((), {}), ((2.0,), {}), ((), {"more": torch.ones(32)}), ((), {"twice": True})]
    wanted = [model(given, *more, **named) for more, named in ways]
    for (more, named), own in zip(ways, wanted, strict=True):
        torch.compiler.reset()
        found = torch.compile(model, fullgraph=True, backend="eager")(given, *more, **named)
        assert same(found, own)
    patch.unpatch()


def test_the_packages_own_tree_holds_the_patching(kernels):
    runtime = Path(kernels.__file__).parent / "runtime"
    assert "agent." not in "".join(p.read_text() for p in runtime.glob("*.py"))
