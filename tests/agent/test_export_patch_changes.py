"""What a patched model may be changed by: its user, another library, a write of its own."""

import importlib
import sys

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from agent.export.artefact import gather
from agent.export.package import export_package
from tests.agent.export_library import cpp_campaign

NAMES = "changing_kernels", "other_kernels"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Two with `bias_relu`: torch.relu(x + bias) of float32 (64, 32) and (32,)."""
    folder = tmp_path_factory.mktemp("library")
    run = cpp_campaign(folder / "run", bias_relu="speedup=3.0")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for name in NAMES:
            export_package(gather([run], "Apache-2.0"), folder / name, name)
            patched.syspath_prepend(str(folder / name / "source"))
        yield tuple(importlib.import_module(name) for name in NAMES)
    for name in [n for n in sys.modules if n.partition(".")[0] in NAMES]:
        del sys.modules[name]


@pytest.fixture
def kernels(libraries):
    return libraries[0]


@pytest.fixture(autouse=True)
def _compiled_anew():
    """Dynamo compiles one function so many times alone, and patched models share theirs."""
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.second = nn.Parameter(torch.randn(32)), nn.Linear(32, 32)

    def forward(self, x):
        return self.second(torch.relu(x + self.shift))


class Blocks(nn.Module):
    """Two blocks whose tensors are one, and a layer without a bias."""

    scale = 1.0

    def __init__(self):
        super().__init__()
        self.plain = nn.Linear(32, 32, bias=False)
        self.one, self.other = Block(), Block()
        self.other.shift = self.one.shift
        self.other.second.weight = self.one.second.weight

    def forward(self, x):
        return self.other(self.one(self.plain(x))) * self.scale


def untied(model):
    model.other.shift = nn.Parameter(torch.randn(32))


def untied_first(model):
    model.one.second.weight = nn.Parameter(torch.randn(32, 32))


def without_bias(model):
    model.one.second.bias = None


def with_bias(model):
    model.plain.bias = nn.Parameter(torch.randn(32))


def frozen(model):
    bias = model.one.second.bias.detach() + 1
    del model.one.second.bias
    model.one.second.register_buffer("bias", bias)


def scaled(model):
    model.scale = 3.0


def replaced_inside(model):
    model.one.second.forward = lambda x: x * 2


def used(kernels) -> int:
    return kernels.counts()["bias_relu"].get("kernel", 0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "change",
    [untied, untied_first, without_bias, with_bias, frozen, scaled, replaced_inside],
)
@pytest.mark.slow
def test_a_model_whose_make_was_changed_runs_its_own_forward(kernels, change, compiled):
    model, given = Blocks().eval(), torch.randn(64, 32)
    patch = kernels.patch(model, given)
    call = torch.compile(model, backend="aot_eager") if compiled else model
    before = used(kernels)
    call(given)
    assert used(kernels) == before + 2
    change(model)
    found = call(given)
    assert used(kernels) == before + 2
    patch.unpatch()
    torch.testing.assert_close(found, model(given))


def test_hooks_on_all_modules_see_those_inside(kernels):
    model, given = Blocks().eval(), torch.randn(64, 32)
    patch = kernels.patch(model, given)
    linear = []
    hook = register_module_forward_hook(
        lambda module, _, found: (
            linear.append(1) or found / 2 if type(module) is nn.Linear else None
        )
    )
    try:
        found = model(given)
        patch.off()
        assert torch.equal(found, model(given))
    finally:
        hook.remove()
        patch.unpatch()
    assert len(linear) == 6


def test_a_patch_of_a_part_does_not_stop_that_of_the_whole(kernels):
    class Deciding(Blocks):
        def forward(self, x, values=False):
            return super().forward(x) if not values or x.sum() > 0 else self.plain(x)

    model, given = Deciding().eval(), torch.randn(64, 32).abs()
    patch = kernels.patch(model, given)
    model(given, values=True)  # torch.export refuses it: the parts are tried
    assert {place.module for place in patch.replaced} == {"one", "other"}
    assert len(patch.sites) > 1
    before = used(kernels)
    model(given)
    assert used(kernels) == before + 2
    patch.unpatch()


def test_two_libraries_in_a_model_are_taken_out_last_in_first_out(libraries):
    first, second = libraries
    model = Blocks().eval()
    below, above = first.patch(model), second.patch(model)
    for unpatch in (below.unpatch, lambda: first.unpatch(model)):
        with pytest.raises(first.LibraryError, match="put into it later: unpatch those"):
            unpatch()
    with pytest.raises(first.LibraryError, match="patched already"):
        first.patch(model)
    above.unpatch()
    first.unpatch(model)
    assert "forward" not in vars(model)


def test_what_became_of_a_patch_is_told_after_it_was_taken_out(kernels):
    model = nn.Linear(32, 32).eval()
    patch = kernels.patch(model, torch.randn(64, 32))
    patch.unpatch()
    assert patch.reasons() == {"bias_relu": "nothing in the model has its graph"}


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shift = nn.Linear(32, 32), nn.Parameter(torch.randn(32))

    def forward(self, x):
        y = self.first(x)
        z = torch.relu(y + self.shift)
        y += 1
        return z * y


def test_an_argument_that_is_written_in_place_afterwards_is_left_to_the_model(kernels):
    model, given = Writing().eval(), torch.randn(64, 32)

    def gradients():
        return torch.autograd.grad(model(given).sum(), list(model.parameters()))

    patch = kernels.patch(model, given)
    found = gradients()
    [place] = patch.places
    assert place.state == "linear, an argument, is written in place afterwards"
    patch.unpatch()
    torch.testing.assert_close(found, gradients())


class Moded(nn.Module):
    """What it returns depends on the mode that it is called in, or changes it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.shift = kind, nn.Parameter(torch.randn(32))

    def forward(self, x):
        if self.kind == "asks":
            return torch.relu(x + self.shift) * (2 if torch.is_grad_enabled() else 3)
        with torch.enable_grad() if self.kind == "enables" else torch.inference_mode():
            return torch.relu(x + self.shift)


@pytest.mark.parametrize("planned_with", [False, True], ids=["first without", "first with"])
@pytest.mark.parametrize("kind", ["asks", "enables", "inference"])
def test_gradient_modes_are_those_of_the_models_own_forward(kernels, kind, planned_with):
    model, given = Moded(kind).eval(), torch.randn(64, 32)
    patch = kernels.patch(model)
    for gradients in (planned_with, not planned_with, planned_with):
        with torch.set_grad_enabled(gradients):
            found = model(given)
            patch.off()
            wanted = model(given)
            patch.on()
        assert torch.equal(found, wanted)
        assert found.requires_grad == wanted.requires_grad
        assert found.is_inference() == wanted.is_inference()
    assert bool(patch.replaced) == (kind != "inference")
    patch.unpatch()


class Counting(nn.Module):
    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.shift, self.calls, self.inner = nn.Parameter(torch.randn(32)), 0, nn.Identity()
        self.inner.calls = 0
        self.counts_inside = inner

    def forward(self, x):
        home = self.inner if self.counts_inside else self
        home.calls += 1
        return torch.relu(x + self.shift) * home.calls


@pytest.mark.parametrize("inner", [False, True])
def test_a_forward_that_changes_attributes_is_the_models_own(kernels, inner):
    model, given = Counting(inner).eval(), torch.randn(64, 32)
    patch = kernels.patch(model, given)
    assert patch.untraceable[""] == "its forward changes its attributes"
    found = model(given)
    assert torch.equal(found, torch.relu(given + model.shift) * 2)
    patch.unpatch()
