"""Winners as stand-alone files with a manifest."""

import ast
import hashlib
import json
from pathlib import Path

import pytest

from agent.export.folder import MANIFEST
from agent.export.modelnew import export_run, file_name
from agent.journals.journal import Journal
from agent.journals.recorded import Purpose
from agent.proposing.scripted import scripted_evaluation
from sandbox.errors import ConfigError
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import campaign, candidate, make_task, script

WINNER = script(2, speedup=2.5) + "class ModelNew: ...\n"
SOURCES = {
    "win": [script(1, speedup=1.5), WINNER],
    "slow": [script(1, speedup=0.7)],
    "wrong": [script(1, status="WRONG_VALUE")],
    "unsupported": [],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    campaign(tmp_path / "run", SOURCES)
    return tmp_path / "run"


def test_only_wins_are_exported_with_their_proof(run, tmp_path):
    kernel, manifest = export_run(run, tmp_path / "out")
    record = json.loads(manifest.read_text())
    [entry] = record["kernels"]
    assert (manifest.name, record["schema_version"], record["run"]) == (MANIFEST, 1, "run")
    assert entry["task_id"] == "test/win"
    assert entry["candidate_id"] == candidate("win", WINNER).id
    assert (entry["status"], entry["confirmed"], entry["speedup"]) == ("PASSED", True, 2.5)
    assert entry["interval"]["low"] == pytest.approx(2.45)
    assert entry["environment"] == {"device": "scripted"}
    assert entry["sha256"] == hashlib.sha256(kernel.read_bytes()).hexdigest()


def test_a_kernel_file_stands_alone_and_says_where_it_comes_from(run, tmp_path):
    text = export_run(run, tmp_path / "out")[0].read_text()
    names = [n.name for n in ast.parse(text).body if isinstance(n, ast.ClassDef)]
    assert names == ["ModelNew"]
    assert text.endswith(WINNER)
    for words in (
        *("test/win", "2.50x [2.45, 2.55]", "device scripted", "warpsmith optimize"),
        "inputs like those that were measured; no gradients, no check, no fallback",
    ):
        assert words in text.partition("# scripted")[0]


def test_a_win_that_was_not_confirmed_is_not_exported(tmp_path):
    campaign(tmp_path / "run", {"win": [WINNER]}, confirm=False)
    worse = scripted_evaluation(candidate("win", WINNER), EvalConfig(), Status.PASSED, 0.99)
    with Journal(tmp_path / "run") as journal:
        journal.record_evaluation(make_task("win"), worse, purpose=Purpose.CONFIRM)
    assert [p.name for p in export_run(tmp_path / "run", tmp_path / "out")] == [MANIFEST]


def test_a_folder_that_cannot_be_written_is_one_clear_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        export_run(run, tmp_path / "file" / "out")


def test_file_names_are_safe():
    assert file_name("kernelbench/level1/19_ReLU") == "kernelbench__level1__19_ReLU.py"
    assert file_name("file/../x y") == "file__..__x_y.py"
