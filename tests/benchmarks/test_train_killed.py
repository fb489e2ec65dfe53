"""A run of RL that was killed ends as one that was not: as many updates, of as many replies."""

import json
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from benchmarks.train_killed import main
from tests.rl import toy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_what_was_killed_has_as_many_updates_of_as_many_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARPSMITH_CACHE", str(tmp_path / "cache"))
    toy.write(tmp_path)
    config = (tmp_path / "toy.yaml").read_text().replace("epochs: 30", "epochs: 12")
    toy_rl = "rl: {group: 4, updates: 6, learning_rate: 1.0e-4"
    (tmp_path / "toy.yaml").write_text(
        config.replace("rl: {group: 4, learning_rate: 1.0e-4", toy_rl)
    )
    policy = toy.fitted(tmp_path)
    arguments = ["--start", str(policy), "--config", "toy.yaml", "--pairs", "1"]
    arguments += ["--kills-s", "9", "--out", str(tmp_path / "record.json")]
    monkeypatch.setattr("sys.argv", ["train_killed", *arguments])
    main()
    whole, killed = json.loads((tmp_path / "record.json").read_text())["runs"]
    assert whole["kills"] == []
    [kill] = killed["kills"]
    assert kill["seconds"] == 9.0
    assert kill["updates"] < 6
    for run in (whole, killed):
        assert len(run["curve"]) == 6
        assert run["replies"] == run["asked"] >= 24
        assert run["kernels"] <= run["replies"]
        assert not run["unscored"]
