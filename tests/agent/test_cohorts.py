"""Weights that learn from one half of the tasks while the other half is sampled and judged."""

import json
import random
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from agent.engines.engine import LocalEngine
from agent.journals.journal import Journal
from agent.learner import LEARN, POLICY_VERSION, Lesson, rollouts
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.loop.lessons import Lessons
from agent.loop.schedule import TaskRun
from agent.proposing.scripted import ScriptedEvaluator, ScriptedProposer, scripted_evaluation
from agent.types import FIRST_TURN
from rewards import speedup
from sandbox.errors import WarpsmithError
from sandbox.records import from_record
from sandbox.types import EvalConfig, Status
from tests.agent.scripts import make_task, script

NAMES = "abcd"
"""Tasks: a and c are of the first cohort."""
ROUNDS = 4
EVERY = sorted((name, round) for name in NAMES for round in range(ROUNDS))


class Learns:
    """Takes every update that there is anything for (agent.learner.Learner)."""

    name, turns, ahead, reward_name, last = "learns", 1, 1, "speedup", None

    def __init__(self, version=0):
        self.version = version
        self.seen = []
        """By update: cohort, and of each rollout its task, its round and its weights' age."""

    def reward(self, evaluation, reply):
        return speedup.reward(evaluation)

    def again(self, known, fresh=None):
        return frozenset()

    def learn(self, known, fresh=None, cohort=0):
        if not fresh:
            return None
        rows = [(r.task_id[-1], r.round, self.version - r.version) for r in fresh]
        self.seen.append((cohort, sorted(rows)))
        self.version += 1
        return Lesson(self.version, len(fresh), 1, 1, {}, cohort)


class Waits(Learns):
    """Does not end its first update before something of the other cohort was judged."""

    begun, judged = threading.Event(), threading.Event()
    waited = None

    def learn(self, known, fresh=None, cohort=0):
        if fresh and self.waited is None:
            self.begun.set()
            self.waited = self.judged.wait(20)
        return super().learn(known, fresh, cohort)


class JudgesMeanwhile(ScriptedEvaluator):
    """test/b no sooner than an update is under way."""

    def evaluate(self, task, candidate, config, *, to_beat=None):
        if task.id == "test/b":
            Waits.begun.wait(20)
            Waits.judged.set()
        return super().evaluate(task, candidate, config, to_beat=to_beat)


class AnyTime(ScriptedEvaluator):
    """Takes what a seed says."""

    dice = random.Random(0)

    def evaluate(self, task, candidate, config, *, to_beat=None):
        time.sleep(self.dice.random() / 50)
        return super().evaluate(task, candidate, config, to_beat=to_beat)


class Fails(Learns):
    def learn(self, known, fresh=None, cohort=0):
        raise WarpsmithError("a rank was lost")


class Writes(ScriptedProposer):
    """With the learner's weights."""

    def __init__(self, learner):
        attempts = [script(n, speedup=1 + n / 10) for n in range(ROUNDS)]
        super().__init__({f"test/{name}": attempts for name in NAMES})
        self.learner = learner

    def propose(self, task, history, n, turn=FIRST_TURN):
        made = super().propose(task, history, n, turn)
        time.sleep(AnyTime.dice.random() / 50)
        features = {POLICY_VERSION: self.learner.version}
        return [replace(p, features=features, prompt="[]", reply=str(turn.round)) for p in made]


def learned(learner):
    """How often from which task's which round."""
    return Counter((task, round) for _, rows in learner.seen for task, round, _ in rows)


def run(
    folder,
    learner,
    evaluator=ScriptedEvaluator,
    lanes=1,
    interrupted=lambda: False,
    on_lesson=lambda _: None,
):
    folder.mkdir(exist_ok=True)
    engine = LocalEngine(evaluator, lanes=lanes)
    config = CampaignConfig(proposals_per_round=1, max_candidates_per_task=ROUNDS, confirm=False)
    tasks = [make_task(name) for name in NAMES]
    try:
        with Journal(folder) as journal:
            run_campaign(
                tasks,
                [Writes(learner)],
                engine,
                journal,
                config,
                learner=learner,
                interrupted=interrupted,
                on_lesson=on_lesson,
            )
            return {(r.task_id[-1], r.round): r.version for r in rollouts(journal)}
    finally:
        engine.close()


def test_cohorts_take_turns_and_every_rollout_is_learned_from_once_soon(tmp_path):
    learner, heard = Learns(), []
    run(tmp_path, learner, on_lesson=heard.append)
    cohorts = [cohort for cohort, _ in learner.seen]
    assert cohorts == [n % 2 for n in range(len(cohorts))]
    assert learned(learner) == Counter(EVERY)
    ages = [age for _, rows in learner.seen for *_, age in rows]
    assert set(ages) == {0, 1}, "no weights learn from what any but the last two wrote"
    with Journal(tmp_path, read_only=True) as journal:
        lessons = [json.loads(detail) for detail in journal.events(LEARN)]
    assert [lesson["cohort"] for lesson in lessons] == cohorts
    assert heard == [from_record(Lesson, lesson) for lesson in lessons]


def test_weights_learn_from_one_cohort_while_the_other_is_judged(tmp_path):
    learner = Waits()
    run(tmp_path, learner, JudgesMeanwhile, lanes=2)
    assert learner.waited is True
    assert learned(learner) == Counter(EVERY)


def test_which_weights_write_what_does_not_depend_on_who_is_faster(tmp_path):
    found = [run(tmp_path / str(n), Learns(), AnyTime, lanes=1 + n % 3) for n in range(6)]
    assert all(versions == found[0] for versions in found)
    assert len(set(found[0].values())) > ROUNDS, "each cohort's rounds have weights of their own"


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_a_run_that_goes_on_learns_from_nothing_twice(tmp_path, updates):
    first = Learns()
    run(tmp_path, first, interrupted=lambda: len(first.seen) >= updates)
    second = Learns(first.version)
    run(tmp_path, second)
    assert len(first.seen) < len(first.seen + second.seen)
    assert learned(first) + learned(second) == Counter(EVERY)


def test_what_is_left_at_the_end_gives_the_weights_no_more_updates_than_they_may_have(tmp_path):
    """Both cohorts have something to learn from, and one update is left for them."""
    learner = Learns(version=2)
    run(tmp_path, learner, interrupted=lambda: True)
    with Journal(tmp_path) as journal:
        runs = [TaskRun(make_task(name), index, ()) for index, name in enumerate(NAMES)]
        for name in NAMES:
            [proposal] = Writes(learner).propose(make_task(name), [], 1)
            journal.record_proposals(0, [proposal])
            found = scripted_evaluation(proposal.candidate, EvalConfig(), Status.PASSED, 2.0)
            journal.record_evaluation(make_task(name), found, reward=speedup.reward(found))
        Lessons(journal, learner, runs, most=3).finish(learn=True)
        assert [json.loads(detail)["version"] for detail in journal.events(LEARN)] == [3]
    assert learner.version == 3


def test_an_update_that_fails_ends_the_campaign(tmp_path):
    with pytest.raises(WarpsmithError, match="a rank was lost"):
        run(tmp_path, Fails())
