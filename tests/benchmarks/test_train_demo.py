"""The training demo goes on after a kill: what had ended is kept, however late the kill came."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from benchmarks.staged import Failed, Step, run_steps, seconds_of
from benchmarks.train_demo import ABLATION, Demo, main
from benchmarks.waiting import Relay
from rl.config import load_train
from rl.policy import FILE


class Commands:
    """What is run, and how it ends."""

    def __init__(self, codes: dict[str, int] | None = None) -> None:
        self.codes = codes or {}
        self.ran: list[list[str]] = []

    def run(self, command: Sequence[str]) -> int:
        self.ran.append(list(command))
        return self.codes.get(command[0], 0)


def run(steps: Sequence[Step], to: Path, commands: Commands, spent_s: float = 0.0) -> str | None:
    """In a piece of 480 s of which so many are over."""
    began_s = time.monotonic() - spent_s
    return run_steps(lambda: steps, to, commands, piece_s=480.0, began_s=began_s)


def test_a_step_whose_end_was_noted_has_ended(tmp_path: Path) -> None:
    step = Step("data", [])
    assert not step.ended(tmp_path)
    (tmp_path / "data.done").write_text("1.0")
    assert step.ended(tmp_path)


def test_a_finished_checkpoint_is_kept_though_its_end_was_not_noted(tmp_path: Path) -> None:
    step = Step("sft", [], result=tmp_path / "sft" / FILE)
    (tmp_path / "sft").mkdir()
    assert not step.ended(tmp_path), "an unfinished one goes on"
    (tmp_path / "sft" / FILE).write_text("{}")
    assert step.ended(tmp_path)
    assert not Step("data", []).ended(tmp_path)


def test_what_has_ended_is_not_run_again_and_what_failed_is(tmp_path: Path) -> None:
    steps = [Step("one", ["one"]), Step("two", ["two"], 7.0), Step("three", ["three"])]
    first, second = Commands({"two": 3}), Commands()
    with pytest.raises(Failed) as failed:
        run(steps, tmp_path, first)
    assert failed.value.code == 3
    assert first.ran == [["one"], ["two", "--max-seconds", "7"]]
    assert run(steps, tmp_path, second) is None
    assert [command[0] for command in second.ran] == ["two", "three"]
    assert set(seconds_of(steps, tmp_path)) == {"one", "two", "three"}


def test_a_step_that_the_piece_has_no_time_for_waits_for_another_call(tmp_path: Path) -> None:
    steps = [Step("short", ["short"], 10.0), Step("long", ["long"], expected_s=400.0)]
    commands = Commands()
    assert run(steps, tmp_path, commands, spent_s=100.0) == "long"
    assert commands.ran == [["short", "--max-seconds", "10"]]
    assert run(steps, tmp_path, commands) is None, "a fresh piece"


def test_a_step_longer_than_a_piece_begins_in_a_fresh_one_and_ends_with_it(tmp_path: Path) -> None:
    commands = Commands()
    assert run([Step("huge", ["huge"], 9000.0)], tmp_path, commands, spent_s=60.0) == "huge"
    assert run([Step("huge", ["huge"], 9000.0)], tmp_path, commands, spent_s=30.0) is None
    [[_, _, box_s]] = commands.ran
    assert 440 < float(box_s) <= 450


def test_rl_begins_and_is_judged_from_the_newest_checkpoint_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = argparse.Namespace(
        config="cpu",
        to=tmp_path / "demo",
        seed=3,
        search_s=1.0,
        self_s=1.0,
        rl_s=1.0,
        skip=[],
        arm=[["bold", "{rl: {iterations: 7}}"]],
    )
    asked.to.mkdir()
    demo = Demo(asked)

    def judged_after_rl() -> str:
        [judge] = [step for step in demo.steps() if step.name == "judge-rl"]
        return judge.command[judge.command.index("--policy") + 1]

    assert judged_after_rl().endswith("self/round-0"), "nothing was learned"
    for version in (1, 2):
        (tmp_path / f"runs/demo-rl/learner/{version}").mkdir(parents=True)
        (tmp_path / f"runs/demo-rl/learner/{version}" / FILE).write_text("{}")
    assert judged_after_rl() == "runs/demo-rl/learner/2"
    names = [step.name for step in demo.ablation()]
    arms = ["self-more", "rl-unshown", "rl-random"]
    assert names == [name for arm in arms for name in (arm, f"judge-{arm}")]
    asked.skip = ["judge-sft", "rl", "self-more", "rl-unshown"]
    assert [step.name for step in demo.wanted(demo.ablation())] == names[4:]
    left_out = {"judge-sft", "rl", "judge-rl"}
    assert {s.name for s in demo.steps()} - {s.name for s in demo.wanted(demo.steps())} == left_out
    for name, different in ABLATION.items():
        settings = load_train(str(asked.to / f"{name}.yaml"))
        assert settings.seed == 3
        for key, value in different.items():
            assert getattr(settings, key) == value != getattr(demo.settings, key)
    assert [step.name for step in demo.further()] == ["bold", "judge-bold"]
    bold = load_train(str(asked.to / "bold.yaml"))
    assert bold.rl == replace(demo.settings.rl, iterations=7)
    more, rl = load_train(str(asked.to / "self-more.yaml")).self_supervised, demo.settings.rl
    assert (more.rounds, more.tasks, more.samples_per_task) == (rl.updates, rl.tasks, rl.group)
    assert more.epochs == demo.settings.self_supervised.epochs
    [arm] = [step for step in demo.ablation() if step.name == "judge-self-more"]
    assert arm.command[arm.command.index("--policy") + 1].endswith("self-more/round-3")


@pytest.mark.slow
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


def test_a_config_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["train_demo", "--config", "nosuch", "--to", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^train_demo: nosuch: no such file, and no train preset"):
        main()


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        (["rl", "{}"], "--arm rl {}: expected a new name, and keys with values"),
        (["bold", "{rl: ["], "--arm bold .*: expected a new name, and keys with values"),
        (["bold", "{rl: {itrations: 8}}"], "unknown key 'rl.itrations'"),
    ],
)
def test_an_arm_that_says_nothing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: list[str], told: str
) -> None:
    argv = ["train_demo", "--config", "cpu", "--to", str(tmp_path), "--arm", *arm]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit, match=f"^train_demo: .*{told}"):
        main()
