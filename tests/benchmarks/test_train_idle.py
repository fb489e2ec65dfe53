"""A whole campaign learns while a ghostwriter stands in for a model that knows nothing."""

from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from benchmarks.train_idle import prepared, run
from tests.benchmarks.test_train_size import TINY
from tests.rl import toy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_its_kernels_are_judged_and_learned_from(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    toy.write(tmp_path)
    changes = {
        "device": "cpu",
        "dtype": "float32",
        "campaign": "learn.yaml",
        "gradient_checkpointing": False,
        "sampling": {"batch": 2, "max_new_tokens": 3},
        "rl": {"group": 2, "batch": 1, "updates": 2},
        "reward": {"kind": "log", "correct": 2.0},
    }
    made = prepared(tmp_path / "idle", "qwen2.5-coder-1.5b", changes, TINY)
    row = run(made, "problems", 2, proposals_per_round=2, tasks_at_once=2)
    assert row["statuses"]["PASSED"] == row["sampled"]["replies"] >= 8, row["statuses"]
    assert "time" in row["mean_stage_s"]
    assert "profile" not in row["mean_stage_s"], "rewards are made of a search's figures"
    assert row["sampled"]["tokens"] == 3 * row["sampled"]["replies"]
    assert [update["version"] for update in row["updates"]] == [1, 2]
    assert all(0 < update["figures"]["idle"] < 1 for update in row["updates"])
    assert row["pulse"][-1]["evaluations"] >= row["sampled"]["replies"]
