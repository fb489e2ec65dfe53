"""Kernels that are faster than eager and not than another baseline: whom they run for."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from agent.export.artefact import Artefact, Gathered, beats_eager, gather, state_of
from agent.export.hub import export_hub
from agent.export.manifest import read_manifest
from agent.export.package import export_package
from agent.export.runtime.dispatch import Dispatch
from agent.export.runtime.records import LIBRARY, read_library, seal
from agent.export.runtime.switches import Against, Switches
from sandbox.figures import Baseline, Interval
from sandbox.types import Status
from tests.agent.export_library import cpp_campaign

NAME, SWITCH = "against_kernels", "AGAINST_KERNELS_AGAINST"
ALONE = "faster than eager, not faster than compile"
"""Compiled, the reference is 1.25 times as fast; `bias_relu` is 1.2 times as fast."""


@pytest.fixture(scope="module")
def gathered(tmp_path_factory) -> Gathered:
    run = tmp_path_factory.mktemp("campaign") / "run"
    return gather([cpp_campaign(run, bias_relu="speedup=1.2", signs="speedup=1.6")])


@pytest.fixture(scope="module")
def exported(gathered, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    export_package(gathered, folder / "package", NAME)
    export_hub(gathered, folder / "repository", NAME)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=["package", "repository"])
def root(exported, request) -> Path:
    """The modules of the library in both formats that ship them."""
    places = {"package": f"package/source/{NAME}", "repository": "repository/build/torch-cpu"}
    return exported / places[request.param]


@pytest.fixture
def kernels(root, tmp_path, cache, monkeypatch):
    """A library that nothing was called of yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copytree(root, tmp_path / "imported")

    def load():
        return importlib.import_module("imported")

    yield load
    for name in [n for n in sys.modules if n.partition(".")[0] == "imported"]:
        del sys.modules[name]


def calls(library, rows: int = 64) -> dict[str, int]:
    """What one call is counted as."""
    before = library.counts()["bias_relu"]
    x, bias = torch.randn(rows, 32), torch.randn(32)
    assert torch.equal(library.operator("bias_relu")(x, bias), torch.relu(x + bias))
    after = library.counts()["bias_relu"]
    return {k: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}


@pytest.mark.parametrize("word", [None, "", "best"])
def test_by_default_a_kernel_must_be_faster_than_every_baseline(kernels, monkeypatch, word):
    if word is not None:
        monkeypatch.setenv(SWITCH, word)
    assert calls(kernels()) == {"faster than eager alone": 1}


def test_the_environment_lets_a_kernel_run_that_is_faster_than_eager_alone(kernels, monkeypatch):
    monkeypatch.setenv(SWITCH, "eager")
    assert calls(kernels()) == {"kernel": 1}
    assert calls(kernels(), rows=4) == {"not measured here": 1}  # correct there, never timed


def test_the_switch_says_the_same_at_any_time(kernels):
    library = kernels()
    library.switch("bias_relu", against="eager")
    assert calls(library) == {"kernel": 1}
    library.switch("bias_relu", on=False)
    assert calls(library) == {"switched off": 1}
    library.switch("bias_relu", on=True)
    assert calls(library) == {"kernel": 1}
    library.switch("bias_relu", against="best")
    assert calls(library) == {"faster than eager alone": 1}


def test_the_table_tells_what_is_faster_than_eager_alone(kernels):
    library = kernels()
    assert f"reference: {ALONE}" in library.table()
    library.switch("bias_relu", against="eager")
    assert f"kernel: {ALONE}" in library.table()
    assert f"\n{SWITCH}=" in library.table()


def test_the_table_names_no_baseline_beside_which_nothing_was_timed(kernels):
    timed, untimed = (
        line for line in kernels().table().splitlines() if line.startswith("bias_relu")
    )
    assert " (compile) " in timed
    assert "correct, not timed" in untimed
    assert "(compile)" not in untimed


def test_another_word_is_one_clear_error(kernels, monkeypatch):
    library = kernels()
    with pytest.raises(library.LibraryError, match="against is 'fast'; expected 'best' or 'eager'"):
        library.switch("bias_relu", against="fast")
    assert calls(library) == {"faster than eager alone": 1}


def test_another_word_in_the_environment_is_one_clear_line(exported):
    command = [sys.executable, "-m", NAME, "table"]
    done = subprocess.run(
        command,
        cwd=exported / "package" / "source",
        env={"PATH": "", SWITCH: "compile"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    wanted = f"{NAME}: {SWITCH} is 'compile'; expected 'best' or 'eager'\n"
    assert done.stderr.endswith(wanted)
    assert "Traceback" not in done.stderr


class Written(nn.Module):
    """What a user wrote, with the operator in it."""

    def forward(self, x, bias):
        return torch.relu(x + bias)


def test_a_model_gets_the_kernel_where_eager_is_what_it_must_beat(kernels):
    library = kernels()
    model, x, bias = Written().eval(), torch.randn(64, 32), torch.randn(32)
    patch = library.patch(model, x, bias, only=["bias_relu"])
    assert patch.reasons() == {
        "bias_relu": f"its kernel is not used: {ALONE} ({SWITCH}=eager runs it)"
    }
    library.unpatch(model)
    library.switch("bias_relu", against="eager")
    assert [p.operator for p in library.patch(model, x, bias).replaced] == ["bias_relu"]
    assert torch.equal(model(x, bias), torch.relu(x + bias))


def test_a_library_that_was_exported_before_the_switch_still_loads(root, tmp_path):
    record = json.loads((root / LIBRARY).read_text())
    for field in ("sha256", "prefix"):
        del record[field]
    for row in (row for operator in record["operators"] for row in operator["rows"]):
        del row["beats_eager"]
    (tmp_path / LIBRARY).write_text(seal(record))
    library = read_library(tmp_path)
    assert library.prefix == library.package
    assert not any(row.beats_eager for o in library.operators for row in o.rows)
    assert any(row.active for o in library.operators for row in o.rows)


def test_manifest_and_page_tell_it_apart(exported):
    for folder in (exported / "package", exported / "repository"):
        kernels = {k["operator"]: k["used"] for k in read_manifest(folder)["kernels"]}
        used = [(u["shape"], u["state"], u["beats_eager"]) for u in kernels["bias_relu"]]
        assert used == [("given", ALONE, True), ("small", "correct, not timed", False)]
        assert [u["state"] for u in kernels["signs"]] == ["active"]
        pages = {p.name.partition("-")[0]: p.read_text() for p in (folder / "pages").iterdir()}
        assert ALONE in pages["bias_relu"]
        assert "_AGAINST=eager` lets it run" in pages["bias_relu"]
        assert "_AGAINST=eager" not in pages["signs"]


def with_evaluation(artefact: Artefact, **changes: object) -> Artefact:
    """As if its figures had been others."""
    changed = [replace(f, evaluation=replace(f.evaluation, **changes)) for f in artefact.findings]
    return replace(artefact, findings=tuple(changed))


def found(artefact: Artefact) -> tuple[str, bool]:
    [finding], shape = artefact.decisive.values(), artefact.interface.shapes[0]
    return state_of(artefact, finding, shape), beats_eager(artefact, finding, shape)


def test_every_other_condition_stays(gathered):
    artefact, _ = gathered.artefacts
    timing = artefact.findings[-1].evaluation.timing
    assert found(artefact) == (ALONE, True)
    searched = replace(artefact, findings=artefact.findings[:1])
    assert found(searched) == ("not confirmed", False)
    assert found(with_evaluation(artefact, parameters="seed")) == ("parameters not matched", False)
    wrong = with_evaluation(artefact, status=Status.WRONG_VALUE)
    assert found(wrong) == ("WRONG_VALUE when checked again", False)
    unsure = replace(timing, speedup=Interval(1.2, 0.99, 1.3))
    assert found(with_evaluation(artefact, timing=unsure)) == ("no win", False)
    short = replace(timing, candidate_ms=0.05)  # of which 0.009 ms are saved
    assert found(with_evaluation(artefact, timing=short)) == ("not faster than compile", False)


def test_a_call_that_saves_enough_against_eager_alone_is_told_too(gathered):
    artefact, _ = gathered.artefacts
    close = Baseline("compile", 0.86, Interval(1.17, 1.169, 1.171))
    little = replace(artefact.findings[-1].evaluation.timing, candidate_ms=0.2)
    changed = with_evaluation(artefact, timing=little, baselines=(close,))
    assert found(changed) == ("faster than eager, too little faster than compile", True)


def test_a_kernel_that_beats_every_baseline_stays_where_another_beats_eager_by_more(exported):
    operator, *_ = read_library(exported / "package" / "source" / NAME).operators
    alone = operator.rows[0]
    best = replace(alone, kernel="best", state="active", speedup=(1.1, 1.05, 1.2))
    both = replace(operator, rows=(best, alone))
    dispatch = Dispatch(NAME, exported, both, Switches(against=Against.EAGER))
    [chosen] = dispatch._on(torch.device("cpu")).values()
    assert chosen.row is best
    assert (dispatch.uses(best), dispatch.uses(alone)) == (True, True)
