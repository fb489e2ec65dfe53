"""FlashInfer-Bench's data set: what it says, what its `run` functions compute, its own loader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from agent.export.artefact import Gathered, gather
from agent.export.flashinfer import export_flashinfer
from agent.export.manifest import read_manifest
from sandbox.errors import ConfigError
from tests.agent.export_cuda import cuda_artefact, cuda_evaluation
from tests.agent.export_library import cpp_campaign

WINS = {"bias_relu": "speedup=3.0", "decayed": "speedup=2.0", "signs": "speedup=1.6"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("flashinfer")
    found = gather([cpp_campaign(folder / "run", **WINS)], "Apache-2.0")
    artefacts = (*found.artefacts, cuda_artefact("gpu/other"))
    export_flashinfer(Gathered(artefacts, ()), folder / "out", lambda task: None)
    return folder / "out"


def definition(folder: Path, name: str) -> dict:
    return json.loads((folder / "definitions" / "warpsmith" / f"{name}.json").read_text())


def solution(folder: Path, name: str) -> dict:
    [path] = (folder / "solutions").rglob(f"{name}/*.json")
    return json.loads(path.read_text())


def lines(folder: Path, name: str, kind: str) -> list[dict]:
    [path] = (folder / kind).rglob(f"{name}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_of(text: str, cache: Path, monkeypatch) -> object:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(cache))
    names: dict = {"__name__": "solution"}
    exec(compile(text, "main.py", "exec"), names)
    return names["run"]


def test_every_dimension_of_an_input_is_variable(exported):
    found = definition(exported, "bias_relu")
    assert found["inputs"]["x"] == {"shape": ["x_0", "x_1"], "dtype": "float32"}
    assert list(found["inputs"]) == ["x", "bias"]
    assert {axis["type"] for axis in found["axes"].values()} == {"var"}
    assert found["outputs"] == {"output": {"shape": ["x_0", "x_1"], "dtype": "float32"}}


def test_numbers_and_several_outputs_have_their_places(exported):
    found = definition(exported, "decayed")
    assert found["inputs"]["scale"] == {"shape": None, "dtype": "float32"}
    assert [o["shape"] for o in found["outputs"].values()] == [["x_0", "x_1"], ["x_0"]]
    [load] = lines(exported, "decayed", "workloads")
    assert load["workload"]["inputs"]["scale"] == {"type": "scalar", "value": 0.5}


@pytest.mark.parametrize("name", WINS)
def test_reference_and_solution_compute_the_same(exported, name, tmp_path, monkeypatch):
    arguments = {
        "bias_relu": (torch.randn(64, 32), torch.randn(32)),
        "decayed": (torch.randn(48, 16), 0.5),
        "signs": (torch.randn(16, 16),),
    }[name]
    spec = solution(exported, name)
    assert spec["spec"]["entry_point"] == "main.py::run"
    [source] = spec["sources"]
    wanted = run_of(definition(exported, name)["reference"], tmp_path, monkeypatch)(*arguments)
    found = run_of(source["content"], tmp_path, monkeypatch)(*arguments)
    torch.testing.assert_close(found, wanted)


def test_every_shape_is_a_workload_and_what_was_timed_a_trace(exported):
    loads = lines(exported, "bias_relu", "workloads")
    assert [load["workload"]["axes"]["x_0"] for load in loads] == [64, 4]
    [trace] = lines(exported, "bias_relu", "traces")
    assert trace["workload"] == loads[0]["workload"]
    assert trace["solution"] == solution(exported, "bias_relu")["name"]
    assert trace["evaluation"]["performance"]["speedup_factor"] == pytest.approx(3.0)
    assert trace["evaluation"]["correctness"]["max_absolute_error"] == "NaN"


@pytest.mark.slow
def test_a_converted_kernel_has_no_trace_before_it_was_judged(exported, tmp_path):
    assert "load_inline" in solution(exported, "other")["sources"][0]["content"]
    assert lines(exported, "other", "traces") == []

    def judges(task):
        return lambda task, candidate, config: cuda_evaluation(candidate)

    export_flashinfer(Gathered((cuda_artefact("gpu/other"),), ()), tmp_path, judges)
    [trace] = lines(tmp_path, "other", "traces")
    assert trace["solution"] == solution(tmp_path, "other")["name"]


@pytest.mark.slow
def test_what_the_schema_cannot_say_is_left_out_with_its_reason(tmp_path):
    wrong = cuda_artefact("gpu/wrong", source="import cupy\ncupy.zeros(1)")
    other = cuda_artefact("gpu/other")
    export_flashinfer(Gathered((wrong, other), ()), tmp_path / "out", lambda task: None)
    assert "cupy.zeros" in read_manifest(tmp_path / "out")["left_out"]["gpu/wrong"]
    with pytest.raises(ConfigError, match=r"nothing for FlashInfer-Bench: gpu/wrong"):
        export_flashinfer(Gathered((wrong,), ()), tmp_path / "none", lambda task: None)


def test_its_own_loader_accepts_the_files(exported, tmp_path, monkeypatch):
    bench = pytest.importorskip("flashinfer_bench", reason="needs the package flashinfer-bench")
    found = bench.TraceSet.from_path(str(exported))
    assert set(found.definitions) == {*WINS, "other"}
    for name, made in found.definitions.items():
        [one] = found.solutions[name]
        assert one.definition == name
        for trace in found.workloads[name]:
            shapes = made.get_input_shapes(trace.workload.axes)
            assert len(list(shapes)) == len(made.inputs)
    assert {t.evaluation.status.value for t in found.traces["decayed"]} == {"PASSED"}
