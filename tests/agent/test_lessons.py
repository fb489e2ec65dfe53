"""An update is told once, in the journal that its curves are drawn from."""

import json
from dataclasses import replace

from agent.journals.journal import Journal
from agent.learner import LEARN, POLICY_VERSION, Lesson, catch_up
from agent.loop.lessons import Lessons
from agent.proposing.scripted import scripted_evaluation
from agent.types import Proposal
from rewards import speedup
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import candidate, make_task, script


class Equal:
    """Finds all replies worth the same (agent.learner.Learner)."""

    name, version, turns, ahead, reward_name = "equal", 0, 1, 0, "speedup"
    last: Lesson | None = None

    def reward(self, evaluation, reply):
        return speedup.reward(evaluation)

    def again(self, known, fresh=None):
        return frozenset()

    def learn(self, known, fresh=None, cohort=0):
        fresh = [r for r in known if r.version == self.version]
        return Lesson(self.version, len(fresh), 0, 1, {"correct": 1.0})


def judged(journal: Journal, number: int) -> None:
    source = candidate("a", script(number))
    row = Proposal(source, "equal@0", "contrastive", prompt="[]", reply=source.source)
    journal.record_proposals(number, [replace(row, features={POLICY_VERSION: 0})])
    found = scripted_evaluation(source, EvalConfig(), Status.PASSED, 2.0)
    journal.record_evaluation(make_task("a"), found, reward=speedup.reward(found))


def test_a_run_that_is_called_again_does_not_tell_its_last_lesson_again(tmp_path):
    """Each call drew one more point on the same rollouts."""
    with Journal(tmp_path) as journal:
        journal.record_task(make_task("a"))
        judged(journal, 0)
        for _ in range(3):
            Lessons(journal, Equal(), ()).finish(learn=True)
        assert len(journal.events(LEARN)) == 1
        judged(journal, 1)
        Lessons(journal, Equal(), ()).finish(learn=True)
        assert len(journal.events(LEARN)) == 2


def test_an_update_that_a_kill_kept_from_being_told_is_told_by_the_next_call(tmp_path):
    """The weights were on disk, and the journal did not have the update that made them."""
    learner = Equal()
    with Journal(tmp_path) as journal:
        catch_up(journal, learner)
        assert journal.events(LEARN) == []
        learner.last = Lesson(1, 4, 1, 1, {"correct": 1.0})
        for _ in range(2):
            catch_up(journal, learner)
        [detail] = journal.events(LEARN)
    assert json.loads(detail)["version"] == 1


def test_a_lesson_is_told_in_a_line():
    figures = {"correct": 0.625, "hacks": 0.0625, "reward": 0.97, "speedup_correct": 1.58}
    figures |= {"seconds": 1.04, "idle": 0.26}
    assert str(Lesson(3, 16, 1, 5, figures)) == (
        "version 3: 16 replies, 62% right at 1.58x, 6% hacks, reward 0.97, 1 of 5 groups teach, "
        "update 1.0 s, waited 26%"
    )
    nothing = figures | {"correct": 0.0, "hacks": 0.0}
    assert str(Lesson(2, 1, 0, 1, nothing)) == (
        "still version 2: 1 reply, 0% right, reward 0.97, 0 of 1 group teach, waited 26%"
    )
    assert str(Lesson(1, 4, 1, 1, {})) == "version 1: 4 replies, 1 of 1 group teach"
