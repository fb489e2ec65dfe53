"""`apply`: what stays in a model is right end to end and not slower; the rest is taken back."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from agent.export.artefact import gather
from agent.export.package import export_package
from agent.extraction.model import UserModel, load_user_model
from agent.substitution import measure
from agent.substitution.apply import apply
from agent.substitution.library import find_library
from agent.substitution.measure import Process, summarise
from agent.substitution.report import Application, Check, PlaceFound, Verified, lines
from agent.substitution.verify import verify
from agent.substitution.worker import work
from sandbox.errors import ConfigError
from tests.agent.export_library import TASKS, cpp_campaign

NAME = "applied_kernels"
MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)
        self.shift = nn.Parameter(torch.randn(32))

    def forward(self, x):
        return torch.relu(self.linear(x) + self.shift)

def get_inputs():
    return [torch.randn(64, 16)]

def get_init_inputs():
    return []
"""


def exported(folder: Path, name: str, **lines: str) -> Path:
    gathered = gather([cpp_campaign(folder / "run", **lines)], "Apache-2.0")
    export_package(gathered, folder / "out", name)
    return folder / "out"


@pytest.fixture
def user(tmp_path) -> UserModel:
    (tmp_path / "model.py").write_text(MODEL)
    return load_user_model(tmp_path / "model.py", "cpu")


class Bent:
    """A patch that is right, or wrong by a little: in what it returns or in its gradient alone."""

    def __init__(self, model: nn.Module, how: str) -> None:
        self.model = model
        own = model.forward
        if how == "outputs":
            model.forward = lambda x: own(x) * (1 + 1e-4)
        elif how == "gradients":
            model.forward = lambda x: own(x).detach() + 2 * (own(x) - own(x).detach())
        else:
            model.forward = lambda x: own(x)

    def unpatch(self) -> None:
        del self.model.forward


def verified(user: UserModel, how: str) -> Verified:
    calls = iter(range(0, 100, 3))
    return verify(user, lambda: Bent(user.model, how), lambda: {"bias_relu": next(calls)})


def test_outputs_and_every_gradient_are_compared_with_float64(user):
    found = verified(user, "right")
    assert found.passed
    assert found.oracle == "float64"
    assert [c.what for c in found.outputs] == ["output 0"]
    assert {c.what for c in found.gradients} == {
        "gradient of shift",
        "gradient of linear.weight",
        "gradient of linear.bias",
        "gradient of input 0",
    }
    assert found.kernels == {"bias_relu": 3}
    assert "forward" not in vars(user.model)


@pytest.mark.parametrize("how", ["outputs", "gradients"])
def test_a_small_error_is_seen(user, how):
    found = verified(user, how)
    assert not found.passed
    assert all(c.passed for c in found.outputs) == (how == "gradients")
    assert not all(c.passed for c in found.gradients)


def test_a_model_that_refuses_float64_is_compared_with_itself(tmp_path):
    check = "        assert x.dtype == torch.float32\n        return"
    insists = MODEL.replace("        return", check, 1)
    (tmp_path / "model.py").write_text(insists)
    user = load_user_model(tmp_path / "model.py", "cpu")
    assert verified(user, "right").passed
    assert verified(user, "right").oracle == "its own dtype"
    assert not verified(user, "outputs").passed


def test_nothing_compared_is_no_success():
    assert not Verified().passed
    assert Verified((Check("output 0", 0.0, 1e-6, True),)).passed


class Repeated:
    """A patch that runs the model's own forward several times: as much slower on any machine."""

    def __init__(self, model: nn.Module, times: int) -> None:
        self.model, self.times, self.own = model, times, model.forward

    def on(self) -> None:
        self.model.forward = self.repeated

    def off(self) -> None:
        del self.model.forward

    def repeated(self, x):
        for _ in range(self.times - 1):
            self.own(x)
        return self.own(x)


@pytest.mark.alone
def test_turns_tell_what_is_slower_from_what_is_not(user, monkeypatch):
    monkeypatch.setattr(measure, "BATCH_S", 2e-4)
    monkeypatch.setattr(measure, "ROUNDS", 5)
    patches = {"slow": Repeated(user.model, 12), "equal": Repeated(user.model, 1)}
    done = [measure.measure(user, patches, "cpu", seed) for seed in range(3)]
    # What an interval then says is below: on a machine that other work is using it may hold 1.0.
    assert summarise(done, "equal").speedup.value > 2 * summarise(done, "slow").speedup.value


def test_the_model_as_it_is_is_timed_under_torch_compile_too(user, monkeypatch):
    monkeypatch.setattr(measure, "BATCH_S", 2e-4)
    monkeypatch.setattr(measure, "ROUNDS", 5)
    patches = {"slow": Repeated(user.model, 12)}
    patched = []

    def compiled(model):
        def call(x):
            patched.append("forward" in vars(model))
            return torch.zeros(1)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    found = measure.measure(user, patches, "cpu", 0, compiled=True)
    assert found.logs[measure.COMPILED] > 0 > found.logs["slow"]
    assert not any(patched)
    assert measure.COMPILED not in measure.measure(user, patches, "cpu", 0).logs

    def failing(model):
        raise RuntimeError("no\ncompiler")

    monkeypatch.setattr(torch, "compile", failing)
    found = measure.measure(user, patches, "cpu", 0, compiled=True)
    assert found.not_compiled == "RuntimeError: no compiler"
    assert set(found.logs) == {measure.AGAIN, "slow"}


def process(log: float) -> Process:
    seconds = {name: 1e-3 for name in (measure.PLAIN, measure.AGAIN, "x")}
    return Process(seconds, {measure.AGAIN: 0.0, "x": log})


def test_an_interval_that_holds_one_says_so():
    found = summarise([process(0.1), process(-0.1), process(0.02)], "x")
    assert found.speedup.low < 1 < found.speedup.high
    assert "the interval holds 1.0" in str(found)
    assert summarise([process(0.1), process(0.11), process(0.1)], "x").says == "faster"
    slower = summarise([process(-0.1), process(-0.11), process(-0.1)], "x")
    assert slower.slower
    assert slower.says == "slower"


@pytest.mark.parametrize("inner", ["", "source", f"source/{NAME}"])
def test_a_library_is_its_export_its_tree_or_its_package(tmp_path, inner):
    package = tmp_path / "source" / NAME
    package.mkdir(parents=True)
    (package / "library.json").write_text(f'{{"package": "{NAME}"}}')
    found = find_library(str(tmp_path / inner))
    assert found == {"package": NAME, "path": str(tmp_path / "source")}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nowhere", "no folder and no installed package"),
        ("no/where", "no folder"),
        ("json", "a package, but no library of kernels"),
        (".", "no library in it"),
    ],
)
def test_what_is_no_library_is_one_clear_line(tmp_path, monkeypatch, given, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words) as told:
        find_library(given)
    assert "\n" not in str(told.value)


def test_the_report_says_what_was_kept_and_how_to_have_it():
    places = (
        PlaceFound("a", "blocks.0", ("mul",), "replaced"),
        PlaceFound("b", "", ("add",), "measured float32[4], here float32[5]"),
    )
    checks = Verified((Check("output 0", 1e-7, 5e-6, True),), no_gradients="no output has one")
    latency = summarise([process(0.1), process(0.11), process(0.1)], "x")
    told = "\n".join(
        lines(Application("m.py", "lib", "cpu", places, {"c": "none"}, ("a",), {}, checks, latency))
    )
    assert "a: blocks.0 (mul): replaced\nb: the model (add): measured float32[4]" in told
    assert "c: none" in told
    assert "1 outputs agree" in told
    assert "no gradients were compared: no output has one" in told
    assert "1.109x [" in told
    assert "import lib; lib.patch(model, *inputs)" in told
    assert "torch.compile" not in told


def test_the_report_sets_torch_compile_beside_the_library():
    latency = summarise([process(0.1), process(0.11), process(0.1)], "x")
    found = Application("m.py", "lib", "cpu", (), {}, ("a",), latency=latency, compiled=latency)
    assert "instead, the model as it is under torch.compile: 1.000 ms -> 1.000 ms, 1.109x" in (
        "\n".join(lines(found))
    )
    failed = replace(found, compiled=None, not_compiled="RuntimeError: no compiler")
    assert lines(failed)[2] == (
        "torch.compile of the model as it is failed: RuntimeError: no compiler"
    )


def test_one_process_has_no_interval(tmp_path):
    with pytest.raises(ConfigError, match="at least 2"):
        apply(tmp_path / "model.py", "lib", "cpu", 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wrong_kernel_is_taken_back(tmp_path, monkeypatch):
    """What an unjudged library, or a broken compiler, could bring."""
    task, source = TASKS["bias_relu"]
    wrong = source.replace("y < 0.0f ? 0.0f : y", "y < 0.0f ? 0.0f : y * 1.001f")
    monkeypatch.setitem(TASKS, "bias_relu", (task, wrong))
    library = exported(tmp_path, "wrong_kernels", bias_relu="speedup=3.0")
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = apply(tmp_path / "model.py", str(library), "cpu", 2)
    assert found.kept == ()
    assert found.taken_back["bias_relu"].startswith("wrong: ")
    assert found.latency is None


def damaged(folder: Path, name: str) -> Path:
    """A library whose kernel is not the file that was measured."""
    library = exported(folder, name, bias_relu="speedup=3.0")
    [kernel] = (library / "source" / name / "kernels").glob("bias_relu_[!r]*.py")
    kernel.write_text(kernel.read_text()[:300])
    return library


def asked(library: Path, model: str) -> dict[str, object]:
    (library.parent / "model.py").write_text(model)
    found = {"model": str(library.parent / "model.py"), "library": find_library(str(library))}
    return found | {"device": "cpu", "only": ["bias_relu"]}


def test_a_kernel_that_did_not_run_was_not_proven(tmp_path):
    found = work(asked(damaged(tmp_path, "idle_kernels"), MODEL) | {"task": "verify"})
    [[name, why]] = found["verified"]["idle"].items()
    assert name == "bias_relu"
    assert "is not the file that was measured (its hash differs)" in why
    assert "\n" not in why


def test_a_library_that_cannot_be_used_is_one_clear_line(tmp_path, monkeypatch):
    library = exported(tmp_path, "unused_kernels", bias_relu="speedup=3.0")
    monkeypatch.setenv("UNUSED_KERNELS_AGAINST", "nothing")
    with pytest.raises(ConfigError, match=r"^unused_kernels: UNUSED_KERNELS_AGAINST is 'nothing'"):
        work(asked(library, MODEL) | {"task": "find"})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kernel_that_did_not_run_is_taken_back(tmp_path, monkeypatch):
    library = damaged(tmp_path, "broken_kernels")
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = apply(tmp_path / "model.py", str(library), "cpu", 2)
    assert found.kept == ()
    assert found.taken_back["bias_relu"].startswith("its kernel did not run: broken_kernels.bias")
    assert found.latency is None


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_a_small_model_from_places_to_an_interval(tmp_path, monkeypatch):
    library = exported(tmp_path, NAME, bias_relu="speedup=3.0")
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = apply(tmp_path / "model.py", str(library), "cpu", 2)
    assert [p.operator for p in found.places if p.replaced] == ["bias_relu"]
    # A kernel of microseconds may win or lose here; what is slower may not stay.
    if not found.kept:
        assert found.taken_back["bias_relu"].startswith("slower")
        return
    assert found.verified is not None
    assert found.verified.passed
    assert found.latency is not None
    assert found.latency.pairs == 2
    assert not found.latency.slower
    assert found.compiled is not None, found.not_compiled
    assert found.compiled.pairs == 2
