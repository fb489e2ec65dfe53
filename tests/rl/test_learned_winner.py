"""`optimize --learn` as a user calls it: what the changed weights write wins and is exported.

The policy knows slow and wrong kernels for a task that it sees for the first time, and that what is
faster than a right one is the vectorised one. So its first weights win nothing, and after the first
update, when exemplars are there, its kernels do. All of it is measured; that training makes a
policy better is not shown here (benchmarks/train_demo.py does).
"""

import json

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from agent.journal import Journal
from agent.learner import LEARN, POLICY_VERSION, rollouts
from rl.grpo import versions
from rl.policy import load_policy
from tests.conftest import run
from tests.rl import toy

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]
LEARNING = ("optimize", "problems/chain.py", "--config", "learn.yaml", "--name", "learned")
POLICY = ("--learn", "--model", "local:policy", "--train", "toy.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("winner")
    toy.write(folder)
    toy.contrasting(folder)
    done = run(folder, *LEARNING, *POLICY, environment=toy.ONE_THREAD)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def journal(folder):
    with Journal(folder / "runs" / "learned", read_only=True) as journal:
        yield journal


def test_the_weights_change(folder):
    learner = folder / "runs" / "learned" / "learner"
    newest = max(versions(learner))
    assert newest >= 1
    old, new = (
        load_policy(f).model.state_dict() for f in (folder / "policy", learner / str(newest))
    )
    assert any(not torch.equal(old[name], new[name]) for name in old)


def test_the_winner_is_of_changed_weights_and_in_the_report(folder):
    done = run(folder, "show", "learned", "--json")
    [row] = json.loads(done.out)["tasks"]
    assert row["policy_version"] >= 1
    assert row["speedup"]["low"] > 1
    assert row["confirmed"]


def test_the_winner_is_in_the_exported_files(folder):
    done = run(folder, "export", "learned", "--to", "exported")
    assert done.code == 0, done.err
    text = "".join(p.read_text() for p in (folder / "exported").rglob("*.py"))
    assert "#pragma omp simd" in text


def test_every_rollout_has_its_version_its_reward_and_its_verdict(journal):
    found = rollouts(journal)
    assert {0, 1} <= {r.version for r in found}
    records = [r for t in journal.tasks() for r in journal.proposals(t.id)]
    assert all(r.reward is not None for r in records if not r.duplicate)
    assert all(POLICY_VERSION in r.proposal.features for r in records)


def test_every_update_tells_its_figures(journal):
    lessons = [json.loads(detail) for detail in journal.events(LEARN)]
    assert lessons
    for lesson in lessons:
        wanted = {"reward", "correct", "hacks", "speedup", "group_variance"}
        assert wanted <= set(lesson["figures"])
    assert lessons[0]["figures"]["lag_s"] > 0
    moved = [lesson["figures"] for lesson in lessons if lesson["groups"]]
    assert all({"trl/entropy", "trl/grad_norm"} <= set(figures) for figures in moved)
