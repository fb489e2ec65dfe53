"""The training demo goes on after a kill: what had ended is kept, however late the kill came."""

from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from benchmarks.train_demo import Step, ended
from benchmarks.waiting import Relay
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


def test_commands_follow_each_other_in_interpreters_that_waited(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with Relay() as relay:
        first = relay._next.pid
        assert relay.run(["--help"]) == 0
        assert relay._next.pid != first
        assert relay.run(["optimize", "nonsense"]) == 2
        last = relay._next
    assert last.poll() is not None, "the one that was left waits no longer"
    told = capfd.readouterr()
    assert "optimize" in told.out
    assert "nonsense" in told.err
