"""Several processes that train one policy, on the CPU: what comes of it is what comes of one."""

import json
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from rl.config import GrpoConfig, TrainConfig
from rl.joining import joined, refuse_uneven
from rl.policy import load_policy
from rl.spread import refuse_older
from sandbox.errors import ConfigError
from tests.doubles.vllm_server import VllmServer
from tests.rl import ranked


def check(folder: Path, case: str, url: str = "") -> None:
    ranked.start(folder)
    processes = ranked.launched("train", str(folder), case, url)
    alone = ranked.trained(folder / "one", ranked.configured(case, url))
    (out, err), (silence, other) = (p.communicate(timeout=100) for p in processes)
    assert [p.returncode for p in processes] == [0, 0], err + other
    assert silence == other == ""
    together = json.loads(out.splitlines()[-1])
    assert together["replies"] == alone["replies"]
    assert (
        (together["version"], together["groups"]) == (alone["version"], alone["groups"]) == (1, 3)
    )
    first, second = together["weights"]
    assert first == second
    one, two = (
        load_policy(folder / name / "learner" / "1").model.state_dict() for name in ("one", "two")
    )
    assert alone["weights"][0][1:] != alone["before"][0][1:]
    assert first[0] == 1
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=1e-4, atol=1e-6)
    trees = [
        {p.name for p in (folder / name / "learner").rglob("*") if "curves" not in p.parts}
        for name in ("one", "two")
    ]
    assert trees[0] == trees[1]


def test_two_ranks_sample_and_learn_what_one_does(tmp_path):
    check(tmp_path, "two steps")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in ranked.CASES if case != "two steps"])
def test_two_ranks_learn_what_one_does(case, tmp_path):
    check(tmp_path, case)


@pytest.mark.slow
def test_two_ranks_learn_what_one_does_from_a_servers_replies(tmp_path):
    with VllmServer(base=tmp_path / "start") as server:
        check(tmp_path, "adapters", server.url)
    asked = [r for r in server.requests if r.path == "/v1/completions"]
    assert len(asked) == 2 * len(ranked.PROMPTS * 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["spread", "spread adam", "spread adapters"])
def test_spread_weights_go_on_after_a_stop_as_if_there_had_been_none(case, tmp_path):
    ranked.start(tmp_path)
    found = []
    for command in ("straight", "stopped"):
        processes = ranked.launched(command, str(tmp_path), case)
        (out, err), (_, other) = (p.communicate(timeout=100) for p in processes)
        assert [p.returncode for p in processes] == [0, 0], err + other
        found.append(json.loads(out.splitlines()[-1]))
    straight, stopped = found
    assert straight["weights"] == stopped["weights"] == [stopped["weights"][0]] * 2
    assert straight["weights"][0][0] == 2
    whole = sum(p.numel() for p in load_policy(tmp_path / "start").model.parameters())
    for weights, kept in straight["held"] + stopped["held"]:
        assert weights < 0.6 * whole
        assert kept < 1.3 * whole


@pytest.mark.parametrize("gone", [0, 1])
def test_a_rank_that_dies_ends_the_others(gone, tmp_path):
    processes = waiting(tmp_path)
    processes[gone].kill()
    _, err = processes[1 - gone].communicate("\n", timeout=60)
    assert processes[1 - gone].returncode == 1, err
    assert ("rank 0 has ended\n", "one of 2 ranks failed or has ended")[gone] in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_rank_waits_longer_than_for_gradients_and_does_nothing(tmp_path):
    processes = waiting(tmp_path)
    rank = psutil.Process(processes[1].pid)
    before = rank.cpu_times()
    time.sleep(ranked.GRADIENTS_S + 1)
    after = rank.cpu_times()
    assert after.user + after.system - before.user - before.system < 1
    _, err = processes[0].communicate("\n", timeout=60)
    assert [processes[0].returncode, processes[1].wait(60)] == [0, 0], err


def waiting(folder: Path) -> list[ranked.Rank]:
    """Two ranks with a policy, until rank 0 reads a line."""
    ranked.start(folder)
    processes = ranked.launched("wait", str(folder))
    assert processes[0].stdout.readline() == "ready\n"
    return processes


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (GrpoConfig(group=4, loss="bnpo"), "take dapo"),
        (GrpoConfig(group=3, loss="grpo"), r"rl.group \(3\) is no multiple of 2 ranks"),
    ],
    ids=["bnpo", "uneven"],
)
def test_a_step_that_ranks_would_take_otherwise_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        refuse_uneven(settings, 2)
    refuse_uneven(GrpoConfig(group=4, loss="grpo"), 2)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED"])
def test_what_would_leave_no_whole_weights_to_sample_with_is_refused(kind, monkeypatch):
    monkeypatch.setenv(f"ACCELERATE_USE_{kind}", "true")
    with (
        pytest.raises(ConfigError, match="expected distributed_type MULTI_GPU"),
        joined(TrainConfig(), "cpu"),
    ):
        pass


def test_an_older_transformers_is_told_of_before_weights_are_spread(monkeypatch):
    monkeypatch.setattr("rl.spread.version", lambda name: "5.22.1")
    with pytest.raises(ConfigError, match=r"needs transformers 5\.23 or newer, and 5\.22\.1"):
        refuse_older()
