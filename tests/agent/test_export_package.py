"""The exported package from its source tree: operators, dispatch, fallback, damage, switches."""

import copy
import gc
import importlib
import json
import logging
import pickle
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agent.export.artefact import (
    Artefact,
    Gathered,
    costed,
    gather,
    loses,
    read_artefact,
    state_of,
    winners,
)
from agent.export.manifest import read_manifest
from agent.export.overhead import operator_ms
from agent.export.package import check_name, export_package
from agent.export.runtime import compiled
from agent.export.runtime.machine import machine
from agent.export.runtime.records import read_library
from sandbox.errors import ConfigError
from sandbox.figures import Baseline, Interval
from sandbox.types import Shape, Status
from tests.agent.export_library import cpp_campaign

NAME = "tested_kernels"
WINS = {"bias_relu": "speedup=3.0", "decayed": "speedup=2.0", "signs": "speedup=1.6"}


@pytest.fixture(scope="module")
def gathered(tmp_path_factory) -> Gathered:
    run = tmp_path_factory.mktemp("campaign") / "run"
    return gather([cpp_campaign(run, **WINS, running="speedup=2")], "Apache-2.0")


@pytest.fixture(scope="module")
def exported(gathered, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    export_package(gathered, folder / "out", NAME)
    return folder / "out"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Compiled kernels, kept over the tests: each is compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tree(exported, tmp_path) -> Path:
    """A copy of the source tree's package, to be damaged."""
    return shutil.copytree(exported / "source" / NAME, tmp_path / NAME)


@pytest.fixture
def kernels(tree, cache, monkeypatch):
    """The package, freshly imported from the copy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.syspath_prepend(str(tree.parent))
    forget()
    gc.freeze()  # what is looked through afterwards is what came of it
    yield importlib.import_module(NAME)
    forget()


def forget() -> None:
    names = [n for n in sys.modules if n.partition(".")[0] == NAME]
    for name in names:
        del sys.modules[name]
    if names:
        gc.collect()


def counts(kernels, name):
    return kernels.counts()[name]


def inputs():
    return torch.randn(64, 32), torch.randn(32)


@pytest.mark.slow
def test_the_winner_runs_where_it_was_measured(kernels):
    x, bias = inputs()
    assert torch.equal(kernels.operator("bias_relu")(x, bias), torch.relu(x + bias))
    assert counts(kernels, "bias_relu") == {"kernel": 1}


@pytest.mark.parametrize(
    ("x", "bias"),
    [
        (torch.randn(5, 32), torch.randn(32)),  # no such shape was measured
        (torch.randn(4, 32), torch.randn(32)),  # correct there, but never timed
        (torch.randn(32, 64).T, torch.randn(32)),
        (torch.randn(64, 64)[:, ::2], torch.randn(32)),
        (torch.randn(64, 32).double(), torch.randn(32).double()),
        (torch.randn(64, 32), torch.randn(1)),
    ],
    ids=["unseen", "untimed", "transposed", "strided", "float64", "broadcast"],
)
def test_anything_else_goes_to_the_reference(kernels, x, bias):
    found = kernels.operator("bias_relu")(x, bias)
    assert torch.equal(found, torch.relu(x + bias))
    assert found.is_contiguous()
    assert counts(kernels, "bias_relu") == {"not measured here": 1}


def test_a_tensor_that_no_allocator_would_return_goes_to_the_reference(kernels):
    x, bias = torch.randn(64 * 32 + 1)[1:].view(64, 32), torch.randn(32)
    assert torch.equal(kernels.operator("bias_relu")(x, bias), torch.relu(x + bias))
    assert counts(kernels, "bias_relu") == {"not aligned": 1}


def test_another_constructor_argument_is_not_what_was_measured(kernels):
    x = torch.randn(48, 16)
    op = kernels.operator("decayed")
    measured, _ = op(x, 0.5)
    other, _ = op(x, 0.5, init="[0.5]")
    assert not torch.allclose(measured, other)
    expected = torch.tanh(x[:, 1] + 0.5 * x[:, 0]) * 0.5
    torch.testing.assert_close(other[:, 1], expected)
    assert counts(kernels, "decayed") == {"kernel": 1, "not measured here": 1}


@pytest.mark.parametrize("name", WINS)
@pytest.mark.slow
def test_operators_pass_opcheck(kernels, name):
    op = kernels.operator(name)
    x, bias = inputs()
    arguments = {
        "bias_relu": (x.requires_grad_(), bias.requires_grad_()),
        "decayed": (torch.randn(48, 16, requires_grad=True), 0.5),
        "signs": (torch.randn(16, 16),),
    }[name]
    torch.library.opcheck(op.op, (*arguments, op.operator.init))
    assert counts(kernels, name)["kernel"] > 1


def test_gradients_are_the_references(kernels):
    x, bias = (t.requires_grad_() for t in inputs())
    weights = torch.randn(64, 32)
    found = torch.autograd.grad((kernels.operator("bias_relu")(x, bias) * weights).sum(), (x, bias))
    wanted = torch.autograd.grad((torch.relu(x + bias) * weights).sum(), (x, bias))
    torch.testing.assert_close(found, wanted)
    assert counts(kernels, "bias_relu") == {"kernel": 1}


def test_one_of_two_outputs_has_a_gradient_too(kernels):
    x = torch.randn(48, 16, requires_grad=True)
    _, last = kernels.operator("decayed")(x, 0.5)
    [found] = torch.autograd.grad(last.sum(), x)
    wanted = 0.75 ** torch.arange(15.0, -1, -1)
    torch.testing.assert_close(found, wanted.expand(48, 16))


def test_a_layer_has_the_references_parameters_and_compiles_into_one_graph(kernels):
    layer = kernels.layer("bias_relu")
    x, _ = inputs()
    found = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, torch.relu(x + layer.bias))
    found.sum().backward()
    assert layer.bias.grad.shape == (32,)
    assert [name for name, _ in layer.named_parameters()] == ["bias"]


def test_a_checkpoint_of_the_reference_loads_into_a_layer_and_back(kernels):
    """Its tensors were under `model.`, where nothing that had been trained before fitted."""
    layer, trained = kernels.layer("bias_relu"), {"bias": torch.randn(32)}
    layer.load_state_dict(trained)
    x, _ = inputs()
    assert torch.equal(layer(x), torch.relu(x + trained["bias"]))
    reference = kernels.operator("bias_relu").reference(32)
    reference.load_state_dict(layer.state_dict())
    assert torch.equal(reference.bias, trained["bias"])


def test_two_layers_do_not_mix_their_parameters(kernels):
    layers = [kernels.layer("bias_relu") for _ in range(2)]
    x, _ = inputs()
    for _ in range(3):
        for layer in layers:
            assert torch.equal(layer(x), torch.relu(x + layer.bias))
            with torch.no_grad():
                layer.bias.add_(1.0)
    assert counts(kernels, "bias_relu") == {"kernel": 6}


def test_a_caller_draws_the_same_random_numbers_with_and_without_kernels(kernels):
    x, bias = inputs()
    torch.manual_seed(1)
    wanted = torch.randn(3)
    torch.manual_seed(1)
    kernels.operator("bias_relu")(x, bias)
    kernels.operator("bias_relu")(x[:7], bias)
    assert torch.equal(torch.randn(3), wanted)


def test_autocast_works_in_the_dtype_that_was_measured(kernels):
    x, bias = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        found = kernels.operator("bias_relu")(x.bfloat16(), bias)
    assert torch.equal(found, torch.relu(x.bfloat16().float() + bias))
    assert counts(kernels, "bias_relu") == {"kernel": 1}


def test_threads_share_an_operator(kernels):
    op, work = kernels.operator("bias_relu"), [inputs() for _ in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pair: op(*pair), work))
    assert all(torch.equal(f, torch.relu(x + b)) for f, (x, b) in zip(found, work, strict=True))
    assert counts(kernels, "bias_relu") == {"kernel": 64}


def test_a_switch_leaves_the_work_to_the_reference(kernels):
    x, bias = inputs()
    kernels.switch("bias_relu", on=False)
    kernels.operator("bias_relu")(x, bias)
    kernels.switch("bias_relu", on=True)
    kernels.operator("bias_relu")(x, bias)
    assert counts(kernels, "bias_relu") == {"switched off": 1, "kernel": 1}


@pytest.mark.parametrize(
    ("off", "used"),
    [("all", "switched off"), ("signs, bias_relu", "switched off"), ("x", "kernel")],
)
def test_the_environment_switches_kernels_off(kernels, monkeypatch, off, used):
    monkeypatch.setenv("TESTED_KERNELS_OFF", off)
    kernels.operator("bias_relu")(*inputs())
    assert counts(kernels, "bias_relu") == {used: 1}


@pytest.mark.parametrize("name", ["Signs", "1", "softmax"])
def test_a_switch_that_names_no_operator_says_so_once(kernels, monkeypatch, caplog, name):
    monkeypatch.setenv("TESTED_KERNELS_OFF", f"signs,{name}")
    kernels.table()
    [record] = caplog.records
    assert f"TESTED_KERNELS_OFF names '{name}', which is no operator here" in record.message


def test_a_second_import_finds_the_same_operators(kernels):
    first, pair = kernels.operator("bias_relu"), inputs()
    wanted = first(*pair)
    again = importlib.reload(kernels)
    assert again.operator("bias_relu") is first
    forget()  # another copy of the package in this process
    third = importlib.import_module(NAME)
    assert third is not kernels
    assert torch.equal(third.operator("bias_relu")(*pair), wanted)


@pytest.mark.parametrize("text", [None, "import os; os._exit(3)"], ids=["truncated", "replaced"])
def test_a_damaged_kernel_is_not_executed_and_the_reference_works(kernels, tree, caplog, text):
    [path] = [p for p in (tree / "kernels").glob("bias_relu_*.py") if "reference" not in p.name]
    path.write_text(path.read_text()[:200] if text is None else text)
    x, bias = inputs()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(kernels.operator("bias_relu")(x, bias), torch.relu(x + bias))
    assert counts(kernels, "bias_relu") == {"kernel broken": 2}
    [record] = caplog.records
    assert "is not the file that was measured" in record.message
    [found] = kernels.library.verify()
    assert path.name in found


def test_a_kernel_that_does_not_compile_here_leaves_the_work_to_the_reference(
    kernels, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cold"))
    monkeypatch.setenv("CXX", "/nowhere/g++")
    x, bias = inputs()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(kernels.operator("bias_relu")(x, bias), torch.relu(x + bias))
    assert counts(kernels, "bias_relu") == {"kernel broken": 1}
    assert "the reference does its work" in caplog.text


@pytest.mark.parametrize("damage", ["whole", "cut", "changed", "unsealed"])
def test_only_libraries_that_are_as_they_were_compiled_are_kept(tmp_path, caplog, damage):
    folder = tmp_path / "build"
    library = folder / "kernel" / "kernel.so"
    library.parent.mkdir(parents=True)
    with compiled.sealed(folder):
        library.write_bytes(b"as compiled")
    if damage == "unsealed":
        (folder / compiled.SEAL).unlink()
    elif damage != "whole":
        library.write_bytes(b"as" if damage == "cut" else b"AS compiled")
    with compiled.sealed(folder):
        assert library.exists() is (damage == "whole")
    assert len(caplog.records) == (damage != "whole")


def test_a_damaged_reference_is_one_clear_error(kernels, tree):
    (tree / "kernels" / "signs_reference.py").write_text("class Model: ...")
    with pytest.raises(kernels.LibraryError, match=r"signs_reference\.py is not the file"):
        kernels.operator("signs")(torch.randn(3, 3))


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_table_is_one_clear_error_at_import(tree, monkeypatch, damage):
    path = tree / "library.json"
    text = path.read_text()
    path.write_text(text[:500] if damage == "cut" else text.replace('"active"', '"fast"'))
    if damage == "gone":
        path.unlink()
    monkeypatch.syspath_prepend(str(tree.parent))
    forget()
    with pytest.raises(Exception, match=r"library\.json.*install it again") as caught:
        importlib.import_module(NAME)
    assert type(caught.value).__name__ == "LibraryError"
    forget()


def test_a_damaged_table_is_one_line_on_the_command_line(tree, monkeypatch, capsys):
    (tree / "library.json").write_text("{")
    monkeypatch.syspath_prepend(str(tree.parent))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-P", "-m", NAME, "verify"])
    forget()
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(NAME)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{NAME}: ")
    assert line.endswith("install it again")
    forget()


def test_a_model_that_holds_a_layer_is_saved_whole(kernels, tree, monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), kernels.layer("signs")).eval()
    model[1].scale = torch.nn.Parameter(torch.randn(4))  # as a reference of its own would have
    x = torch.randn(16, 16)
    wanted, saved = model(x), pickle.dumps(model)
    again = copy.deepcopy(model)
    assert torch.equal(again(x), wanted)
    assert again[1].scale is not model[1].scale
    forget()  # as in another process
    loaded = pickle.loads(saved)
    assert torch.equal(loaded(x), wanted)
    assert not loaded.training
    assert torch.equal(loaded[1].scale, model[1].scale)
    assert loaded[1].scale.requires_grad
    assert counts(importlib.import_module(NAME), "signs") == {"kernel": 1}
    forget()
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tree.parent)])
    with pytest.raises(ModuleNotFoundError, match=NAME):
        pickle.loads(saved)


def with_evaluation(artefact: Artefact, **changes: object) -> Artefact:
    """As if its figures had been others."""
    changed = [replace(f, evaluation=replace(f.evaluation, **changes)) for f in artefact.findings]
    return replace(artefact, findings=tuple(changed))


@pytest.mark.slow
def test_a_library_from_another_machine_is_unverified(gathered, tmp_path, monkeypatch):
    elsewhere = {"device": "cpu", "cpu": "Other", "threads": "96"}
    moved = tuple(with_evaluation(a, environment=elsewhere) for a in gathered.artefacts)
    export_package(Gathered(moved, ()), tmp_path / "out", NAME)
    monkeypatch.syspath_prepend(str(tmp_path / "out" / "source"))
    forget()
    kernels = importlib.import_module(NAME)
    x = torch.randn(16, 16)
    assert torch.equal(kernels.operator("signs")(x), (x > 0).long())
    assert counts(kernels, "signs") == {"not measured here": 1}
    assert "(the reference runs): bias_relu, decayed, signs" in kernels.table()
    assert "Other x96" in kernels.table()
    forget()


def costing(artefact: Artefact, operator_ms: float) -> Artefact:
    """As if a call of its operator had been measured to cost so much."""
    return replace(
        artefact, findings=tuple(replace(f, operator_ms=operator_ms) for f in artefact.findings)
    )


def state(artefact: Artefact) -> str:
    [finding] = artefact.decisive.values()
    return state_of(artefact, finding, artefact.interface.shapes[0])


def test_only_a_confirmed_figure_above_every_baseline_is_active(gathered):
    bias_relu, *_ = gathered.artefacts
    faster = Baseline("compile", 0.1, Interval(2.99, 2.95, 3.05))
    assert state(bias_relu) == "active"
    assert state(with_evaluation(bias_relu, baselines=(faster,))) == (
        "faster than eager, not faster than compile"
    )
    assert state(with_evaluation(bias_relu, parameters="seed")) == "parameters not matched"
    wrong = with_evaluation(bias_relu, status=Status.WRONG_VALUE)
    assert state(wrong) == "WRONG_VALUE when checked again"
    short = replace(bias_relu.findings[-1].evaluation.timing, candidate_ms=0.005)
    assert state(with_evaluation(bias_relu, timing=short)).startswith("saves less than calling")
    assert state(costing(bias_relu, 0.1)) == "active"  # 0.33 ms at three times the speed
    assert state(costing(bias_relu, 0.9)).startswith("saves less than calling")
    searched = replace(bias_relu, findings=bias_relu.findings[:1])
    assert state(searched) == "not confirmed"


@pytest.mark.parametrize(("line", "ordered"), [("", False), ("KEPT = torch.empty(4)\n", True)])
def test_a_call_costs_what_one_of_a_kernel_that_keeps_as_much_does(gathered, line, ordered):
    [artefact] = [a for a in gathered.artefacts if a.operator == "signs"]
    source = artefact.candidate.source + line
    artefact = costed(replace(artefact, candidate=replace(artefact.candidate, source=source)))
    assert artefact.ordered == ordered
    inputs, state = len(artefact.interface.inputs), len(artefact.interface.state)
    wanted = operator_ms("cpu", inputs, state, ordered)
    assert artefact.findings[-1].operator_ms == round(wanted, 5)


@pytest.mark.parametrize(
    ("candidate_ms", "low", "device", "loses_there"),
    [
        (0.012, 2.0, "cuda", True),  # 24 us against 12 + 20
        (0.012, 3.0, "cuda", False),
        (0.030, 1.2, "cuda", True),  # may be as much host code as an operator's
        (0.030, 1.4, "cuda", False),
        (0.045, 1.01, "cuda", False),  # hidden behind the kernels
        (0.045, 1.01, "cpu", True),
        (0.045, 1.5, "cpu", False),
    ],
)
def test_a_kernel_saves_what_calling_its_operator_costs(
    gathered, candidate_ms, low, device, loses_there
):
    evaluation = gathered.artefacts[0].findings[-1].evaluation
    short = replace(evaluation, timing=replace(evaluation.timing, candidate_ms=candidate_ms))
    assert loses(short, Interval(low, low, low), 0.02, device) is loses_there


def test_several_runs_make_one_library_with_the_better_kernel(tmp_path):
    slow = cpp_campaign(tmp_path / "slow", signs="speedup=1.5", decayed="speedup=2")
    fast = cpp_campaign(tmp_path / "fast", signs="speedup=2.5")
    found = {a.task.id: a.provenance.run for a in winners([fast, slow])}
    assert found == {"test/signs": "fast", "test/decayed": "slow"}


@pytest.mark.slow
def test_a_kernel_that_won_on_two_machines_keeps_the_evidence_of_both(tmp_path):
    elsewhere = {"device": "cpu", "cpu": "Other", "threads": "96"}
    here = cpp_campaign(tmp_path / "here", signs="speedup=2")
    there = cpp_campaign(tmp_path / "there", elsewhere, signs="speedup=2")
    found = gather([here, there])
    [signs] = found.artefacts
    assert set(signs.decisive) == {machine("cpu"), "Other x96"}
    export_package(found, tmp_path / "out", NAME)
    [path] = (tmp_path / "out" / "artefacts").iterdir()
    assert read_artefact(path) == signs
    library = read_library(tmp_path / "out" / "source" / NAME)
    assert {r.machine for r in library.operators[0].rows} == set(signs.decisive)
    noted = costed(signs).decisive
    assert noted[machine("cpu")].operator_ms is not None
    assert noted["Other x96"].operator_ms is None


@pytest.mark.slow
def test_one_kernel_of_two_tasks_has_a_file_for_each(gathered, tmp_path):
    [*_, signs] = gathered.artefacts
    other = replace(signs, task=replace(signs.task, shapes=(*signs.task.shapes, Shape("more"))))
    export_package(Gathered((signs, other), ()), tmp_path / "out", NAME)
    read = [read_artefact(path) for path in (tmp_path / "out" / "artefacts").iterdir()]
    assert {a.task.hash for a in read} == {signs.task.hash, other.task.hash}


@pytest.mark.slow
def test_two_libraries_with_the_same_reference_do_not_replace_each_other(
    kernels, gathered, tmp_path, monkeypatch
):
    export_package(gathered, tmp_path / "out", "other_kernels")
    monkeypatch.syspath_prepend(str(tmp_path / "out" / "source"))
    other = importlib.import_module("other_kernels")
    pair = inputs()
    for library in (kernels, other, kernels):
        library.operator("bias_relu")(*pair)
    assert counts(kernels, "bias_relu") == {"kernel": 2}
    assert counts(other, "bias_relu") == {"kernel": 1}


def test_a_task_that_cannot_be_an_operator_is_named_with_its_reason(exported):
    left_out = read_manifest(exported)["left_out"]
    assert left_out == {"test/running": "it changes its arguments, parameters or buffers"}


def test_the_manifest_covers_every_file(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "copy")
    record = read_manifest(folder)
    assert {k["operator"] for k in record["kernels"]} == set(WINS)
    [first, *_] = record["kernels"]
    assert [f["purpose"] for f in first["findings"]] == ["search", "confirm"]
    assert first["findings"][0]["best_baseline"] == "compile"
    assert first["provenance"]["prompt_sha256"]
    [page] = (folder / "pages").glob("signs-*.md")
    page.write_text(page.read_text().replace("1.6", "9.6"))
    with pytest.raises(ConfigError, match=r"pages/signs.* not as exported"):
        read_manifest(folder)


def rewritten(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record, indent=2))


@pytest.mark.slow
def test_a_manifest_that_was_changed_is_told_by_whoever_reads_it(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "copy")
    rewritten(folder / "manifest.json", lambda m: m["left_out"].clear())
    with pytest.raises(ConfigError, match=r"manifest\.json was changed after it was written"):
        read_manifest(folder)
    told = subprocess.run(
        [sys.executable, "-m", NAME, "verify"],
        cwd=folder / "source", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 1
    assert "manifest.json was changed after it was written" in told.stdout


def test_a_manifest_is_not_taken_for_an_older_one_where_its_hash_is_gone(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "copy")
    rewritten(folder / "manifest.json", lambda m: m.pop("sha256"))
    with pytest.raises(ConfigError, match="was changed"):
        read_manifest(folder)


def test_a_manifest_from_before_it_had_a_hash_is_accepted_for_its_files(exported, tmp_path):
    folder = shutil.copytree(exported, tmp_path / "copy")
    rewritten(folder / "manifest.json", lambda m: (m.pop("sha256"), m.update(schema_version=2)))
    assert read_manifest(folder)["package"] == NAME
    [page] = (folder / "pages").glob("signs-*.md")
    page.unlink()
    with pytest.raises(ConfigError, match="not as exported"):
        read_manifest(folder)


def test_wheel_and_source_distribution_hold_the_library_and_nothing_of_ours(exported):
    [wheel], [sdist] = ((exported / "dist").glob(f"*{end}") for end in (".whl", ".tar.gz"))
    names = zipfile.ZipFile(wheel).namelist()
    assert f"{NAME}/library.json" in names
    assert any(n.startswith(f"{NAME}/pages/signs-") for n in names)
    with tarfile.open(sdist) as archive:
        inside = [n.partition("/")[2] for n in archive.getnames()]
    assert f"{NAME}/library.json" in inside
    for file in (exported / "source").rglob("*.py"):
        text = file.read_text()
        for package in ("agent", "sandbox", "warpsmith"):
            assert f"import {package}" not in text
            assert f"from {package}" not in text


@pytest.mark.slow
def test_the_table_can_be_read_from_a_shell(tree):
    command = [sys.executable, "-m", NAME, "table"]
    done = subprocess.run(command, cwd=tree.parent, capture_output=True, text=True, check=True)
    [line] = [x for x in done.stdout.splitlines() if x.startswith("decayed")]
    assert "float32[48,16] 0.5" in line
    assert "kernel" in line


@pytest.mark.slow
def test_a_copy_under_another_name_tells_of_its_own_files(tree):
    copied = tree.rename(tree.with_name("vendored"))
    kernel = copied / "kernels" / "signs_reference.py"
    kernel.unlink()
    done = subprocess.run(
        [sys.executable, "-m", "vendored", "verify"],
        cwd=copied.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"kernels/{kernel.name} cannot be read (No such file or directory)\n"
    assert done.returncode == 1


@pytest.mark.parametrize("name", ["torch", "numpy", "json", "agent"])
def test_a_library_does_not_take_a_name_that_other_code_imports(name):
    with pytest.raises(ConfigError, match=f"package '{name}': other code imports this name"):
        check_name(name)
    check_name(f"{name}_kernels")


@pytest.mark.parametrize("name", ["Kernels", "class", "a-b", "x"])
def test_a_name_that_python_cannot_import_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="expected a name such as"):
        export_package(Gathered((), ()), tmp_path / "out", name)
