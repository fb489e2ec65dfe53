"""`optimize --learn` as a user calls it: TRL updates on real evaluations, killed and resumed.

The toy is trained too little to write a kernel that passes: its rewards differ by its replies' form
and by what its code gets through. That a winner comes of it is not shown here.
"""

import json
import signal
import subprocess
import time

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from agent.journals.journal import Journal
from agent.learner import LEARN, POLICY_VERSION
from rl.grpo import versions
from rl.policy import load_policy
from tests.conftest import COMMAND, environment_of, run
from tests.rl import toy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LEARNING = ("optimize", "problems", "--config", "learn.yaml", "--name", "learned", "--learn")
ARGUMENTS = (*LEARNING, "--model", "local:policy", "--train", "toy.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A campaign that learned, killed once on its way."""
    folder = tmp_path_factory.mktemp("learning")
    toy.write(folder)
    toy.fitted(folder)
    process = subprocess.Popen(
        [*COMMAND, *ARGUMENTS], cwd=folder, env=environment_of(folder, **toy.ONE_THREAD)
    )
    path = folder / "runs" / "learned" / "learner"
    deadline = time.monotonic() + 120
    while not versions(path) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Journal(folder / "runs" / "learned", read_only=True) as journal:
        before = [r.id for t in journal.tasks() for r in journal.proposals(t.id)]
    (folder / "before.json").write_text(json.dumps(before))
    done = run(folder, *ARGUMENTS, environment=toy.ONE_THREAD)
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def records(folder):
    with Journal(folder / "runs" / "learned", read_only=True) as journal:
        return [r for t in journal.tasks() for r in journal.proposals(t.id)]


def test_the_weights_change(folder):
    learner = folder / "runs" / "learned" / "learner"
    newest = max(versions(learner))
    assert newest >= 1
    old, new = (
        load_policy(f).model.state_dict() for f in (folder / "policy", learner / str(newest))
    )
    assert any(not torch.equal(old[name], new[name]) for name in old)


def test_every_rollout_is_an_attempt_with_its_version_and_reward(records):
    seen = {r.proposal.features[POLICY_VERSION] for r in records}
    assert {0, 1} <= seen
    judged = [r for r in records if not r.duplicate]
    assert all(r.reward is not None and r.proposal.prompt and r.proposal.reply for r in judged)


def test_a_kill_loses_no_rollout(folder, records):
    before = json.loads((folder / "before.json").read_text())
    assert [r.id for r in records][: len(before)] == before


def test_the_journal_says_what_each_update_did(folder):
    with Journal(folder / "runs" / "learned", read_only=True) as journal:
        lines = journal._database.execute(
            "SELECT detail FROM events WHERE kind = ?", (LEARN,)
        ).fetchall()
    lessons = [json.loads(line["detail"]) for line in lines]
    assert [lesson["version"] for lesson in lessons] == sorted(
        lesson["version"] for lesson in lessons
    )
    assert all(0 <= lesson["figures"]["correct"] <= 1 for lesson in lessons)
