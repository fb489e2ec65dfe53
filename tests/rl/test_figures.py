"""What the journal and the curves tell of a generation."""

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from agent.journals.journal import Journal
from agent.learner import Rollout
from agent.proposing.scripted import scripted_evaluation
from agent.types import Proposal
from kernelbench.suite import load_tasks
from rewards import speedup
from rewards.terms import RewardConfig
from rl.config import HeldOut
from rl.curves import FOLDER, as_text, chosen, write_curves
from rl.figures import spread, summary
from rl.judging import judged
from rl.trainers import Group
from sandbox.types import Candidate, EvalConfig, Language, Status


def rollout(text: str, status: Status, ratio: float = 1.0, **more) -> Rollout:
    found = scripted_evaluation(Candidate("t", Language.CPP, text), EvalConfig(), status, ratio)
    return Rollout("t", "[]", text, 3, found, text, **more)


GENERATION = (
    rollout("fast", Status.PASSED, 4.0, lag_s=2.0),
    rollout("slow", Status.PASSED, 1.0, lag_s=4.0),
    rollout("cheat", Status.REWARD_HACK),
    rollout("mended", Status.PASSED, 1.0, parents=("wrong",), repair=True),
)


def test_figures_name_the_terms_the_shares_the_speedup_and_the_lag():
    figures = summary(GENERATION, RewardConfig())
    assert (figures["correct"], figures["hacks"], figures["lag_s"]) == (0.75, 0.25, 3.0)
    assert figures["speedup"] == pytest.approx(4**0.25)
    assert figures["speedup_correct"] == pytest.approx(4 ** (1 / 3))
    assert (figures["repairs"], figures["repaired"]) == (0.25, 1.0)
    assert sum(v for k, v in figures.items() if k.startswith("term/")) == figures["reward"]


def test_groups_without_variance_are_told():
    groups = [Group("a", [], [], [1.0, 3.0, None]), Group("b", [], [], [2.0, 2.0])]
    assert spread(groups) == {"group_variance": 0.5, "equal_groups": 0.5}
    assert spread([]) == {}


def test_curves_hold_the_figures_and_some_replies_with_their_verdicts(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the train extra")
    write_curves(tmp_path, 3, {"reward": 1.5, "trl/entropy": 0.7}, GENERATION)
    [file] = (tmp_path / FOLDER).iterdir()
    written = file.read_bytes()
    for word in (b"rollouts/reward", b"trl/entropy", b"REWARD_HACK", b"4.00x eager"):
        assert word in written


def test_what_is_written_within_a_second_is_kept_apart(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the train extra")
    for reward in range(3):
        write_curves(tmp_path, 3, {"reward": reward}, GENERATION)
    assert len(list((tmp_path / FOLDER).iterdir())) == 3


def test_of_many_rollouts_a_few_are_shown():
    assert len(chosen([GENERATION[0]] * 100)) == 4
    assert as_text(GENERATION[0]).startswith("t: PASSED, 4.00x eager")


def test_a_policy_is_judged_by_split_and_failures_count_as_eager(tmp_path):
    tasks = load_tasks("synthetic:rows:40", "cpu")
    with Journal(tmp_path) as journal:
        for number, task in enumerate(tasks):
            candidate = Candidate(task.id, Language.CPP, task.id)
            status = Status.WRONG_VALUE if number % 2 else Status.PASSED
            found = scripted_evaluation(candidate, EvalConfig(), status, 4.0)
            journal.record_task(task)
            journal.record_proposals(0, [Proposal(candidate, "p")])
            journal.record_evaluation(task, found, reward=speedup.reward(found))
        splits = judged(journal, HeldOut(families=0.3, tasks=0.3))
    assert [s.split for s in splits] == ["held_out_family", "held_out_task", "train"]
    assert sum(s.tasks for s in splits) == 40
    assert sum(s.correct for s in splits) == 20
    for split in splits:
        share = split.correct / split.tasks
        assert split.speedup.value == pytest.approx(4**share)
        assert f"{split.correct} of {split.tasks} correct" in str(split)
