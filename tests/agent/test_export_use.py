"""An exported library as a program uses it: by name, copied, pickled, exported, deterministic."""

import copy
import fcntl
import importlib
import inspect
import os
import pickle
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from agent.export.artefact import gather
from agent.export.package import export_package
from agent.export.repeating import repeats
from agent.export.runtime import compiled
from agent.export.runtime.records import Kernel, LibraryError
from tests.agent.export_library import cpp_campaign

NAME = "used_kernels"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    run = cpp_campaign(folder / "run", bias_relu="speedup=3.0")
    export_package(gather([run], "Apache-2.0"), folder / "out", NAME)
    return folder


@pytest.fixture(scope="module")
def kernels(source):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(source / "cache"))
        patched.syspath_prepend(str(source / "out" / "source"))
        yield importlib.import_module(NAME)
    for name in [n for n in sys.modules if n.partition(".")[0] == NAME]:
        del sys.modules[name]


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.shift = nn.Linear(16, 32), nn.Parameter(torch.randn(32))

    def forward(self, x, scale: float = 1.0):
        return torch.relu(self.linear(x) * scale + self.shift)


@pytest.fixture
def model(kernels):
    made = Shifted().eval()
    yield made
    kernels.unpatch(made)


def x():
    return torch.randn(64, 16)


def used(kernels) -> int:
    return kernels.counts()["bias_relu"].get("kernel", 0)


# --- what exports and scripts models -------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.slow
def test_a_patched_model_is_exported_as_it_is_without_the_patch(kernels, model, strict, outer):
    given = x()
    kernels.patch(model, given)
    whole = nn.Sequential(model).eval() if outer else model
    rows = {0: torch.export.Dim("rows", min=2, max=128)}
    program = torch.export.export(whole, (given,), dynamic_shapes=(rows,), strict=strict)
    assert NAME not in str(program.graph)
    assert torch.equal(program.module()(given), model(given))
    assert program.module()(given[:7]).shape == (7, 32)
    before = used(kernels)
    model(given)
    assert used(kernels) == before + 1


def test_a_patched_model_is_traced_as_it_is_without_the_patch(kernels, model):
    given = x()
    kernels.patch(model, given)
    known = len(vars(model)["forward"].plans)
    traced = torch.jit.trace(model, (given,))
    assert "aten::relu" in str(traced.graph)
    assert torch.equal(traced(given), model(given))
    assert len(vars(model)["forward"].plans) == known


@pytest.mark.parametrize("outer", [False, True])
def test_a_patched_model_is_not_scripted_and_the_remedy_is_told(kernels, model, outer):
    patch = kernels.patch(model, x())
    whole = nn.Sequential(model).eval() if outer else model
    with pytest.raises(kernels.LibraryError, match="unpatch it first"):
        torch.jit.script(whole)
    patch.unpatch()
    assert torch.equal(torch.jit.script(whole)(given := x()), whole(given))


def test_a_layer_is_not_scripted_and_the_remedy_is_told(kernels):
    with pytest.raises(kernels.LibraryError, match=r"torch\.jit\.trace"):
        torch.jit.script(kernels.layer("bias_relu"))


def test_a_patched_model_tells_the_names_of_its_inputs(kernels, model):
    wanted = inspect.signature(model.forward)
    kernels.patch(model, x())
    assert inspect.signature(model.forward) == wanted


# --- copies --------------------------------------------------------------------------------------


def test_a_replica_of_a_patched_model_computes_with_its_own_parameters(kernels, model):
    """As torch.nn.DataParallel makes them, a device each."""
    given = x()
    kernels.patch(model, given)
    replica = model._replicate_for_data_parallel()
    replica._parameters = {"shift": torch.full((32,), 100.0)}
    assert bool((replica(given) > 50).all())
    assert not bool((model(given) > 50).all())


def test_unpatching_leaves_nothing_in_the_model(kernels, model):
    before = dict(vars(model))
    kernels.patch(model, x()).unpatch()
    assert vars(model).keys() == before.keys()


def test_an_operator_is_copied_and_pickled_with_what_holds_it(kernels):
    model = nn.Linear(2, 2)
    model.call = kernels.operator("bias_relu")
    assert copy.deepcopy(model).call is model.call
    assert pickle.loads(pickle.dumps(model)).call is model.call


# --- forked processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["models.LOADING", "library.DEFINING", "counts"])
def test_a_process_that_is_forked_while_a_thread_holds_a_lock_can_call_operators(kernels, where):
    runtime = {n: importlib.import_module(f"{NAME}.runtime.{n}") for n in ("models", "library")}
    op, given, bias = kernels.operator("bias_relu"), torch.randn(64, 32), torch.randn(32)
    module, _, name = where.partition(".")
    lock = getattr(runtime[module], name) if name else op.dispatch.counts._lock
    held, leave = threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        op.dispatch._kernels.clear()
        for chosen in op.dispatch._here.get(given.device, {}).values():
            chosen.loaded = None
        found = kernels.operator("bias_relu")(given, bias)
        os._exit(0 if torch.equal(found, (given + bias).relu()) else 3)
    status = os.waitpid(child, 0)[1]
    leave.set()
    thread.join()
    assert status == 0


def test_a_forked_process_keeps_no_other_from_compiling(tmp_path):
    with compiled.sealed(tmp_path / "build"):
        (tmp_path / "build").mkdir()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            signal.pause()
    try:
        with open(tmp_path / "build.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# --- arguments by name ---------------------------------------------------------------------------


def test_arguments_may_be_given_by_name(kernels):
    op, given, bias = kernels.operator("bias_relu"), torch.randn(64, 32), torch.randn(32)
    layer = kernels.layer("bias_relu")
    before = used(kernels)
    assert torch.equal(op(bias=bias, x=given), torch.relu(given + bias))
    assert torch.equal(op(given, bias=bias), torch.relu(given + bias))
    assert torch.equal(layer(x=given), layer(given))
    assert used(kernels) == before + 4


@pytest.mark.parametrize("named", [{"y": 1}, {"x": 1}, {"bias": 1, "y": 1}])
def test_a_name_that_is_no_arguments_is_told_with_those_that_are(kernels, named):
    with pytest.raises(TypeError, match=r"bias_relu takes 2 arguments \(x, bias\)"):
        kernels.operator("bias_relu")(torch.randn(64, 32), **named)


# --- deterministic algorithms --------------------------------------------------------------------


@pytest.fixture
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize(
    ("certain", "reason"), [(True, "kernel"), (False, "not certain to repeat")]
)
def test_where_torch_is_to_be_deterministic_only_kernels_that_repeat_run(
    kernels, monkeypatch, certain, reason
):
    op, given, bias = kernels.operator("bias_relu"), torch.randn(64, 32), torch.randn(32)
    op(given, bias)
    [chosen] = op.dispatch._here[given.device].values()
    assert chosen.repeats  # its source has no atomics
    monkeypatch.setattr(chosen, "repeats", certain)
    before = kernels.counts()["bias_relu"].get(reason, 0)
    assert torch.equal(op(given, bias), torch.relu(given + bias))
    assert kernels.counts()["bias_relu"][reason] == before + 1


@pytest.mark.parametrize(
    ("line", "certain"),
    [
        ("out[i] = x[i] + operand[threadIdx.x];", True),
        ("value += __shfl_down_sync(mask, value, 16); __syncthreads();", True),
        ("atomicAdd(out, value);", False),
        ("tl.atomic_add(out, value)", False),
        ('asm volatile("red.global.add.f32 [%0], %1;");', False),
        ("cp.reduce.async.bulk.global", False),
        ("@triton.autotune(configs=CONFIGS)", False),
        ("#pragma omp parallel for reduction(+:sum)", False),
        ("at::parallel_for(0, n, 1, work);", False),
        ("curand_uniform(&state)", False),
    ],
)
def test_a_source_whose_sums_may_change_their_order_is_not_certain_to_repeat(line, certain):
    assert repeats(line) is certain


# --- where nothing can be written ----------------------------------------------------------------


def kernel(language: str) -> Kernel:
    return Kernel("k", "k.py", "0" * 64, language, "none")


def test_what_torch_does_not_compile_needs_no_folder_to_compile_in(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compiled.build_folder("p", kernel("cuda")) is None
    with pytest.raises(LibraryError, match="XDG_CACHE_HOME"):
        compiled.build_folder("p", kernel("cpp"))
