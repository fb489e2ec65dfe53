"""The training demo goes on after a kill: what had ended is kept, however late the kill came."""

from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from benchmarks.train_demo import Step, ended
from rl.policy import FILE


@pytest.mark.parametrize("name", ["data", "sft"])
def test_a_step_whose_end_was_noted_has_ended(tmp_path: Path, name: str) -> None:
    assert not ended(Step(name, []), tmp_path)
    (tmp_path / f"{name}.done").write_text("1.0")
    assert ended(Step(name, []), tmp_path)


def test_a_finished_checkpoint_is_kept_though_its_end_was_not_noted(tmp_path: Path) -> None:
    (tmp_path / "sft").mkdir()
    assert not ended(Step("sft", []), tmp_path), "an unfinished one goes on"
    (tmp_path / "sft" / FILE).write_text("{}")
    assert ended(Step("sft", []), tmp_path)
    assert not ended(Step("data", []), tmp_path)
