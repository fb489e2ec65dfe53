"""What one greedy reply to each held-out task is worth, and that nothing is left out unseen."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from agent.journals.journal import Journal
from agent.prompts.message import Message
from agent.proposing.scripted import scripted_evaluation
from agent.types import Proposal
from kernelbench.suite import load_tasks
from rewards import speedup
from rl.config import HeldOut, SamplingConfig, ShapeConfig
from rl.judging import judged
from rl.kept import WEIGHTS, refuse_other_weights
from rl.local import LocalModel
from rl.policy import new_policy
from sandbox.errors import ConfigError
from sandbox.types import Candidate, EvalConfig, Language, Status
from tests.rl import toy

SHAPE = ShapeConfig(vocabulary=400, hidden=32, layers=1, heads=2, feed_forward=32, context=128)
VERDICTS = (Status.PASSED, Status.WRONG_VALUE, Status.SANDBOX_ERROR, None)


def test_tasks_without_a_verdict_are_told_beside_those_that_have_one(tmp_path: Path):
    with Journal(tmp_path) as journal:
        for task, status in zip(load_tasks("synthetic:rows:4", "cpu"), VERDICTS, strict=True):
            journal.record_task(task)
            if status is not None:
                candidate = Candidate(task.id, Language.CPP, f"# {task.id}")
                journal.record_proposals(0, [Proposal(candidate, "toy@2", "best-of-n")])
                found = scripted_evaluation(candidate, EvalConfig(), status, 2.0)
                journal.record_evaluation(task, found, reward=speedup.reward(found))
        [row] = judged(journal, HeldOut(families=0.0, tasks=1.0))
    assert (row.policy, row.tasks, row.correct, row.unjudged) == ("toy@2", 2, 1, 2)
    assert str(row).startswith("held_out_task, toy@2: 1 of 2 correct (50%), 1.41x")
    assert str(row).endswith("; 2 more without a verdict")


def test_a_prompt_that_leaves_no_room_is_a_failure_of_the_policy_that_is_judged():
    """Else the longest tasks are no part of the share that is right."""
    shape = ShapeConfig(vocabulary=400, hidden=32, layers=1, heads=2, feed_forward=32, context=64)
    policy = new_policy(["a line\n"] * 20, shape, "toy")
    prompts = [[Message(role="user", content="x" * n)] for n in (1, 500)]
    judging = LocalModel(policy, SamplingConfig(greedy=True, max_new_tokens=8))
    short, long = judging.complete_each(prompts)
    assert short is not None
    assert long is not None
    assert (long.text, long.finish_reason) == ("", "length")
    learning = LocalModel(policy, SamplingConfig(max_new_tokens=8))
    assert learning.complete_each(prompts)[1] is None


@pytest.mark.slow
def test_as_json_it_is_one_value_on_stdout(tmp_path: Path, cli):
    """The campaign's table went before it."""
    toy.write(tmp_path)
    shape = ShapeConfig(vocabulary=400, hidden=32, layers=1, heads=2, feed_forward=32)
    new_policy(["a line\n"] * 20, shape, "toy").save(tmp_path / "policy")
    judge = ("train", "judge", "--policy", "policy", "--name", "j", "--config", "toy.yaml")
    done = cli(tmp_path, *judge, "--split", "train", "--json")
    assert done.code == 0, done.err
    [row] = json.loads(done.out)
    assert (row["split"], row["tasks"], row["correct"]) == ("train", 2, 0)
    assert "none correct" in done.err


def test_a_run_that_goes_on_with_other_weights_in_the_folder_is_refused(tmp_path: Path):
    """What the earlier ones wrote was told as theirs."""
    run, policy = tmp_path / "run", tmp_path / "policy"
    run.mkdir()
    texts = ["a b c", "d e f"] * 20
    for seed in (1, 2):
        new_policy(texts, SHAPE, "toy", seed=seed).save(policy)
        if seed == 1:
            refuse_other_weights(run, policy)
            kept = shutil.copytree(policy, tmp_path / "kept")
            refuse_other_weights(run, kept)
    with pytest.raises(
        ConfigError, match=r"run 'run' was begun by other weights than .*policy holds"
    ):
        refuse_other_weights(run, policy)
    (kept / "notes.json").write_text("{}")
    refuse_other_weights(run, kept)
    (run / WEIGHTS).write_text("")  # Cut off, of a full disk or a kill.
    refuse_other_weights(run, kept)
    refuse_other_weights(run, tmp_path / "at a hub")
