"""Exported kernels through the harnesses of others, for which small ones stand here."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from benchmarks import exported

EVAL = """
from types import SimpleNamespace
def eval_kernel_against_ref(original_model_src, custom_model_src, **options):
    assert "class Model(" in original_model_src and options["backend"] == "cuda"
    return SimpleNamespace(compiled=True, correctness="right" in custom_model_src, runtime=2.0,
                           ref_runtime=3.0, metadata={})
"""
CHECKER = """
def validate_kernel_static(code, backend, precision):
    return True, ["no CUDA code"] if "plain" in code else [], []
"""
RUNNER = """
import json, sys
from pathlib import Path
def cli():
    assert sys.argv[1:3] == ["run", "--local"]
    folder = Path(sys.argv[3]) / "traces" / "warpsmith"
    for name, status in (("one", "PASSED"), ("two", "RUNTIME_ERROR")):
        found = {"status": status, "log": "it broke", "performance": None, "correctness": None}
        line = {"definition": name, "solution": name + "_1", "workload": {"axes": {"n": 4}}}
        with (folder / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps({**line, "evaluation": found}) + chr(10))
"""
PROBLEM = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.rand(4)]
def get_init_inputs():
    return []
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "checkout"
    write(folder / "KernelBench/level1/19_ReLU.py", PROBLEM)
    package = folder / "src/kernelbench"
    write(package / "__init__.py", "")
    write(package / "eval.py", EVAL)
    write(package / "kernel_static_checker.py", CHECKER)
    write(package / "utils.py", "def set_gpu_arch(names): assert names == ['Hopper']")
    for name in ("__init__", "cli/__init__"):
        write(folder / f"src/flashinfer_bench/{name}.py", "")
    write(folder / "src/flashinfer_bench/cli/main.py", RUNNER)
    monkeypatch.setenv("PYTHONPATH", str(folder / "src"))
    monkeypatch.setattr(metadata, "version", lambda name: "0.1.2")
    return folder


def export(folder: Path, texts: dict[str, str]) -> Path:
    entries = []
    for name, text in texts.items():
        write(folder / "kernelbench/runs" / name, text)
        entry = {"file": f"runs/{name}", "task_id": "kernelbench/level1/19_ReLU"}
        entry |= {"candidate_id": name, "language": "cuda_inline", "backend": "cuda"}
        entries.append({**entry, "converted_from": "abc", "status": "PASSED", "speedup": None})
    entries.append({**entries[0], "file": "modelnew/own.py", "task_id": "builtin/softmax"})
    write(folder / "kernelbench/manifest.json", json.dumps({"kernels": entries}))
    ours = {"performance": {"speedup_factor": 1.5}}
    line = {"definition": "one", "solution": "one_1", "evaluation": ours}
    write(folder / "flashinfer/traces/warpsmith/one.jsonl", json.dumps(line) + "\n")
    return folder


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, checkout: Path) -> dict[str, Any]:
    out = folder / "out.json"
    command = ["exported", str(folder), "--kernelbench", str(checkout), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    exported.main()
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.slow
def test_every_kernel_has_the_checkers_and_the_evaluations_word(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"a.py": "right", "b.py": "plain right", "c.py": "wrong"}
    found = run(monkeypatch, export(tmp_path / "export", texts), checkout)
    theirs = [row["theirs"] for row in found["kernelbench"]]
    assert [row["refused"] for row in theirs] == [[], ["no CUDA code"], []]
    assert [row["verdict"] for row in theirs] == ["correct", "correct", "incorrect"]
    assert theirs[0]["speedup"] == 1.5
    assert all(row["converted"] for row in found["kernelbench"])


def test_what_its_runner_adds_is_told_from_what_was_there(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export(tmp_path / "export", {"a.py": "right"})
    found = run(monkeypatch, folder, checkout)
    one, two = found["flashinfer"]
    assert (one["status"], one["ours"]) == ("PASSED", {"speedup_factor": 1.5})
    assert (two["status"], two["ours"], two["log"]) == ("RUNTIME_ERROR", None, "it broke")
    [left] = (folder / "flashinfer/traces/warpsmith").iterdir()
    assert len(left.read_text().splitlines()) == 1, "the export itself was changed"
