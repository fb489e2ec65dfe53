"""`optimize --learn` as a user calls it: what the changed weights write wins and is exported.

The first weights win nothing. Rewards make their right kernel likelier than their wrong one, and
the next generation, to which the right one is shown, writes faster ones (tests/rl/recurrence.py).
TRL's update and every verdict are real; that training makes a policy better is not shown here
(benchmarks/train_demo.py does).
"""

import json
import math

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from agent.journals.journal import Journal
from agent.learner import LEARN, POLICY_VERSION, rollouts
from agent.report.details import unpack
from agent.report.find import page_of
from kernelbench.suite import load_tasks
from rl.data import composition_of, family_of, teaches
from rl.policy import Policy, load_policy
from tests.conftest import run
from tests.rl import recurrence
from tests.rl.toy import ONE_THREAD

pytestmark = [pytest.mark.alone, pytest.mark.timeout(480)]
LEARNING = ("optimize", "recurrence.py", "--config", "learn.yaml", "--name", "learned", "--learn")
POLICY = ("--model", "local:policy", "--train", "toy.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """Of a campaign that learned."""
    folder = tmp_path_factory.mktemp("winner")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a team of two spins where other processes want the cores
    recurrence.write(folder)
    torch.set_num_threads(threads)
    done = run(folder, *LEARNING, *POLICY, environment=ONE_THREAD, timeout_s=400)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def policies(folder) -> tuple[Policy, Policy]:
    """Before the first update and after the last."""
    learned = (folder / "runs" / "learned" / "learner").iterdir()
    newest = max((f for f in learned if f.name.isdigit()), key=lambda f: int(f.name))
    return load_policy(folder / "policy"), load_policy(newest)


@pytest.fixture(scope="module")
def journal(folder):
    with Journal(folder / "runs" / "learned", read_only=True) as journal:
        yield journal


def test_an_update_changes_the_weights_in_favour_of_what_was_rewarded(policies, journal):
    old, new = (policy.model.state_dict() for policy in policies)
    assert any(not torch.equal(old[name], new[name]) for name in old)
    prompt = json.loads(next(r.prompt for r in rollouts(journal) if r.version == 0))
    before, after = (preference(policy, prompt) for policy in policies)
    assert after > before


def test_a_checkpoint_tells_what_it_was_taught(folder, policies):
    [task] = load_tasks(str(folder / "recurrence.py"), "cpu")
    known = teaches(composition_of(task), family_of(task), "given")
    assert [policy.taught for policy in policies] == [set(), known]


def preference(policy: Policy, prompt) -> float:
    """Log of how many times likelier the right kernel is than the wrong one."""
    ids = policy.prompt_ids(prompt)
    right, wrong = (
        math.fsum(policy.log_probabilities(ids, policy.reply_ids(recurrence.reply(source))))
        for source in (recurrence.SLOW, recurrence.WRONG)
    )
    return right - wrong


def test_the_winner_is_of_changed_weights(folder, cli):
    done = cli(folder, "show", "learned", "--json")
    [row] = json.loads(done.out)["tasks"]
    assert row["confirmed"]
    assert row["policy_version"] >= 1
    assert row["best"]["source"] in recurrence.FASTER
    assert row["speedup"]["low"] > 1


def test_the_winner_is_in_the_report(folder):
    page, _ = page_of(str(folder / "runs" / "learned"))
    details = unpack(page.details[0])
    assert details["candidates"][details["best"]]["version"] >= 1
    assert page.training


def test_the_winner_is_in_the_exported_files(folder, cli):
    done = cli(folder, "export", "learned", "--to", "exported")
    assert done.code == 0, done.err
    [entry] = json.loads((folder / "exported" / "manifest.json").read_text())["kernels"]
    assert entry["confirmed"]
    assert int(entry["proposer"].partition("@")[2]) >= 1
    text = (folder / "exported" / entry["file"]).read_text()
    assert any(source in text for source in recurrence.FASTER)


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
    assert all(0 < lesson["figures"]["idle"] < 1 for lesson in lessons)
    moved = [lesson["figures"] for lesson in lessons if lesson["groups"]]
    assert moved
    assert all({"trl/entropy", "trl/grad_norm"} <= set(figures) for figures in moved)
