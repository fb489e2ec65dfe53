"""The loop's decisions, with scripted doubles for proposer and evaluator."""

import threading
from dataclasses import replace
from functools import partial

import pytest

from agent.engines.engine import LocalEngine
from agent.engines.lanes import LaneLost
from agent.journals.journal import Journal
from agent.journals.outcome import Stage, reports
from agent.journals.recorded import Purpose
from agent.learner import POLICY_VERSION
from agent.loop.budget import CampaignConfig
from agent.loop.campaign import run_campaign
from agent.proposing.scripted import ScriptedEvaluator, ScriptedProposer
from agent.types import FIRST_TURN
from rewards import speedup
from sandbox.errors import DeviceError, InvalidReference, SandboxFault
from sandbox.types import Evaluation, Language, Status
from tests.agent.scripts import (
    calls,
    campaign,
    candidate,
    local_engine,
    make_task,
    proposer,
    script,
)

SOFTMAX = [
    script(1, speedup=1.5),
    script(2, status="WRONG_VALUE"),
    script(3, speedup=2.0),
    script(4, speedup=0.5),
]


def test_the_best_candidate_is_found_confirmed_and_reported(tmp_path):
    [row] = campaign(tmp_path, {"a": SOFTMAX}).tasks
    assert row.best.proposal.candidate == candidate("a", SOFTMAX[2])
    assert (row.tried, row.stage, row.verdict) == (4, Stage.DONE, "win")
    assert row.against_compile.value == pytest.approx(2.0 / 1.25)


def test_the_winner_is_measured_afresh_after_it_was_selected(tmp_path):
    log = tmp_path / "log"
    engine = local_engine(log=log)
    campaign(tmp_path / "run", {"a": SOFTMAX}, engine)
    engine.close()
    winner = candidate("a", SOFTMAX[2]).id
    assert calls(log, "evaluate")[-1] == winner
    assert calls(log, "evaluate").count(winner) == 2


def test_the_bound_to_beat_is_the_best_of_earlier_rounds(tmp_path):
    log = tmp_path / "log"
    engine = local_engine(log=log)
    campaign(tmp_path / "run", {"a": SOFTMAX}, engine, proposals_per_round=2, confirm=False)
    engine.close()
    bounds = [line.split("to_beat=")[1] for line in log.read_text().splitlines() if "=" in line]
    assert bounds == ["None", "None", "1.47", "1.47"]


def test_a_task_nobody_can_work_on_is_reported_with_the_reason(tmp_path):
    rows = campaign(tmp_path, {"a": SOFTMAX, "b": []}).tasks
    assert rows[1].stage is Stage.UNSUPPORTED
    assert rows[1].reason == "scripted: the script has no line for this task"


def test_an_invalid_reference_ends_its_task_alone(tmp_path):
    engine = local_engine(invalid=("test/b",))
    rows = campaign(tmp_path, {"a": SOFTMAX, "b": SOFTMAX}, engine).tasks
    engine.close()
    assert [row.stage for row in rows] == [Stage.DONE, Stage.INVALID]
    assert (rows[1].tried, rows[1].verdict) == (0, "invalid reference")
    assert "constant" in rows[1].reason


def test_repeated_candidates_are_recorded_but_not_evaluated_again(tmp_path):
    log = tmp_path / "log"
    engine = local_engine(log=log)
    same = script(1, status="TIMEOUT")
    [row] = campaign(tmp_path / "run", {"a": [same] * 9}, engine, proposals_per_round=3).tasks
    engine.close()
    assert len(calls(log, "evaluate")) == row.tried == 1
    with Journal(tmp_path / "run") as journal:
        duplicates = [r.duplicate for r in journal.proposals("test/a")]
    assert duplicates.count(False) == 1
    assert len(duplicates) > 3


def test_our_own_fault_is_retried_once_and_never_scored(tmp_path):
    log = tmp_path / "log"
    engine = local_engine(log=log)
    campaign(tmp_path / "run", {"a": [script(1, status="SANDBOX_ERROR")]}, engine)
    engine.close()
    assert len(calls(log, "evaluate")) == 2
    with Journal(tmp_path / "run") as journal:
        [attempt] = journal.attempts("test/a")
    assert attempt.evaluation.status is Status.SANDBOX_ERROR
    assert attempt.reward.value is None


def test_budgets_of_candidates_are_kept_and_shared(tmp_path):
    many = [script(i, speedup=0.5) for i in range(9)]
    rows = campaign(tmp_path, dict.fromkeys("abc", many), max_candidates=7).tasks
    assert [row.tried for row in rows] == [3, 2, 2]
    per_task = campaign(tmp_path / "other", {"a": many}, max_candidates_per_task=4).tasks
    assert per_task[0].tried == 4


def test_the_end_of_the_time_stops_cleanly_and_a_later_call_goes_on(tmp_path, clock):
    many = [script(i, speedup=1 + i) for i in range(60)]
    engine = local_engine(seconds=4, sleep=clock.sleep)
    options = {"max_candidates_per_task": 60, "proposals_per_round": 60}
    first = campaign(tmp_path, {"a": many}, engine, max_seconds=160, **options)
    assert clock.now_s <= 160
    assert first.stopped is not None
    assert 20 < first.tried < 40
    assert first.tasks[0].confirmed, "part of the time is kept for confirming"
    second = campaign(tmp_path, {"a": many}, **options)
    engine.close()
    assert (second.tried, second.stopped) == (60, None)


def test_an_interrupt_records_what_was_under_way(tmp_path):
    log = tmp_path / "log"
    engine = local_engine(seconds=0.2, log=log)
    many = [script(i) for i in range(6)]
    result = campaign(tmp_path / "run", {"a": many}, engine, lambda: bool(calls(log, "start")))
    engine.close()
    assert result.stopped == "interrupted"
    assert result.tried == len(calls(log, "start")) == 1


def test_a_finished_run_does_nothing_when_it_is_run_again(tmp_path):
    log = tmp_path / "log"
    for _ in range(2):
        engine = local_engine(log=log)
        result = campaign(tmp_path / "run", {"a": SOFTMAX}, engine)
        engine.close()
    assert len(calls(log, "evaluate")) == 5
    assert result.tasks[0].verdict == "win"


def test_every_stage_is_in_the_journal_with_its_seconds(tmp_path):
    campaign(tmp_path, {"a": SOFTMAX})
    with Journal(tmp_path) as journal:
        journal.export_jsonl(tmp_path / "all.jsonl")
        assert reports(journal)[0].verdict == "win"
        assert journal.proposals("test/a")[2].confirmation is not None
    lines = (tmp_path / "all.jsonl").read_text()
    assert all(f'"kind": "{kind}"' in lines for kind in ("propose", "prepare", "evaluate"))
    assert lines.count(f'"purpose": "{Purpose.CONFIRM}"') == 1


class NoCompiler(ScriptedEvaluator):
    """Shipped double plus a machine without a compiler."""

    def evaluate(self, task, candidate, config, *, to_beat=None):
        if "no compiler" in candidate.source:
            raise DeviceError("nvcc is not installed; install the CUDA toolkit")
        return super().evaluate(task, candidate, config, to_beat=to_beat)


def test_a_device_that_never_worked_ends_the_campaign_and_loses_no_proposal(tmp_path):
    engine = LocalEngine(NoCompiler)
    with pytest.raises(DeviceError, match="nvcc"):
        campaign(tmp_path, {"a": ["no compiler"]}, engine)
    engine.close()
    assert campaign(tmp_path, {"a": ["no compiler"]}).tried == 1


def test_one_missing_compiler_does_not_stop_other_languages(tmp_path):
    engine = LocalEngine(NoCompiler)
    sources = [script(1, speedup=2.0), "no compiler", script(3, speedup=3.0)]
    [row] = campaign(tmp_path, {"a": sources}, engine, proposals_per_round=1).tasks
    engine.close()
    assert (row.tried, row.speedup.value) == (3, 3.0)


class InvalidLater(ScriptedEvaluator):
    def evaluate(self, task, candidate, config, *, to_beat=None):
        raise InvalidReference(f"{task.id}: stochastic")


def test_a_reference_found_invalid_while_measuring_ends_its_task(tmp_path):
    engine = LocalEngine(partial(InvalidLater))
    [row] = campaign(tmp_path, {"a": SOFTMAX}, engine).tasks
    engine.close()
    assert (row.stage, row.tried) == (Stage.INVALID, 0)


class NoRoomNow(ScriptedEvaluator):
    def evaluate(self, task, candidate, config, *, to_beat=None):
        status = Status.INVALID_REFERENCE
        return Evaluation(task.id, candidate.id, config.id, status, detail="no room")


def test_candidates_of_a_reference_that_was_invalid_once_are_judged_by_the_next_call(tmp_path):
    engine = LocalEngine(NoRoomNow)
    [row] = campaign(tmp_path, {"a": SOFTMAX}, engine).tasks
    engine.close()
    assert (row.stage, row.tried, row.reason) == (Stage.INVALID, 0, "no room")
    [row] = campaign(tmp_path, {"a": SOFTMAX}).tasks
    assert row.stage is Stage.DONE
    assert row.tried == len(SOFTMAX)


class Unprepared(ScriptedEvaluator):
    """Cannot prepare test/b: `error` is raised the first `times`."""

    error: Exception = KeyError("a bug of ours")
    times = 99

    def figures(self, task, config):
        super().figures(task, config)
        if task.id == "test/b" and calls(self.log, "prepare").count(task.id) <= self.times:
            raise self.error


class OnceDisturbed(Unprepared):
    error, times = SandboxFault("another process uses the GPU"), 1


class EndsItsLane(Unprepared):
    error = LaneLost("the node is gone")


@pytest.mark.parametrize(
    ("evaluator", "stage"),
    [(Unprepared, Stage.STOPPED), (OnceDisturbed, Stage.DONE), (EndsItsLane, Stage.STOPPED)],
)
def test_a_task_that_cannot_be_prepared_is_tried_again_and_ends_alone(tmp_path, evaluator, stage):
    engine = LocalEngine(partial(evaluator, log=tmp_path / "log"))
    sources = {"a": SOFTMAX, "b": SOFTMAX, "c": SOFTMAX}
    rows = campaign(tmp_path / "run", sources, engine).tasks
    engine.close()
    assert [row.stage for row in rows] == [Stage.DONE, stage, Stage.DONE]


class Inline(ScriptedProposer):
    """Proposes what is built ahead."""

    def propose(self, task, history, n, turn=FIRST_TURN):
        made = super().propose(task, history, n, turn)
        kernels = [replace(p.candidate, language=Language.CUDA_INLINE) for p in made]
        return [replace(p, candidate=k) for p, k in zip(made, kernels, strict=True)]


@pytest.mark.parametrize("error", [OSError("no space"), SandboxFault("zygote"), LaneLost("node")])
def test_a_build_that_fails_through_us_is_left_to_the_evaluation(tmp_path, error):
    def build(candidate, config):
        raise error

    engine = LocalEngine(ScriptedEvaluator, build)
    config = CampaignConfig(device="cuda")
    with Journal(tmp_path) as journal:
        found = run_campaign(
            [make_task("a")], [Inline({"test/a": SOFTMAX})], engine, journal, config
        )
    engine.close()
    assert (found.tasks[0].tried, found.tasks[0].verdict) == (4, "win")


def test_many_tasks_share_the_lanes(tmp_path):
    sources = {str(i): [script(j, speedup=2.0) for j in range(4)] for i in range(10)}
    engine = LocalEngine(ScriptedEvaluator, lanes=3)
    result = campaign(tmp_path, sources, engine, device="cuda", proposals_per_round=2)
    engine.close()
    assert [row.tried for row in result.tasks] == [4] * 10
    assert all(row.verdict == "win" for row in result.tasks)
    assert make_task("0").id == result.tasks[0].task_id


def test_every_task_gets_a_round_before_the_time_is_spent_on_one(tmp_path, clock):
    engine = local_engine(seconds=1, sleep=clock.sleep)  # 120 s for all, 18 for a round of each
    many = {str(i): [script(j, speedup=0.5) for j in range(20)] for i in range(6)}
    result = campaign(tmp_path, many, engine, max_seconds=40, max_candidates_per_task=20)
    engine.close()
    assert result.stopped is not None
    assert all(row.tried >= 3 for row in result.tasks)


class Waits(ScriptedEvaluator):
    """Judges test/b once it is let go."""

    go = threading.Event()

    def evaluate(self, task, candidate, config, *, to_beat=None):
        if task.id == "test/b":
            self.go.wait(10)
        return super().evaluate(task, candidate, config, to_beat=to_beat)


class CountingLearner:
    """Counts updates (agent.learner.Learner)."""

    name, version, turns, ahead, reward_name = "counting", 0, 1, 0, "speedup"
    calls, last = 0, None

    def reward(self, evaluation, reply):
        return speedup.reward(evaluation)

    def again(self, known, fresh=None):
        return frozenset()

    def learn(self, known, fresh=None, cohort=0):
        self.calls += 1


class Unsatisfied(CountingLearner):
    """Has nothing to learn from test/a's first replies."""

    def __init__(self):
        self.generations = []

    def again(self, known, fresh=None):
        mine = [r for r in known if r.version == self.version and r.task_id == "test/a"]
        return frozenset({"test/a"} if len(mine) == 1 else ())

    def learn(self, known, fresh=None, cohort=0):
        fresh = [r.task_id for r in known if r.version == self.version]
        if fresh:
            self.generations.append(fresh)
            self.version += 1


class Versioned(ScriptedProposer):
    """Writes with the learner's weights."""

    def __init__(self, sources, learner):
        super().__init__({f"test/{name}": s for name, s in sources.items()})
        self.learner = learner

    def propose(self, task, history, n, turn=FIRST_TURN):
        made = super().propose(task, history, n, turn)
        features = {POLICY_VERSION: self.learner.version}
        return [replace(p, features=features, reply="a reply") for p in made]


def test_a_task_that_taught_nothing_has_another_round_before_the_weights_change(tmp_path):
    learner, engine = Unsatisfied(), LocalEngine(ScriptedEvaluator)
    attempts = [script(n, speedup=1 + n / 10) for n in range(5)]
    asking = Versioned({"a": attempts, "b": attempts}, learner)
    with Journal(tmp_path) as journal:
        run_campaign(
            [make_task("a"), make_task("b")],
            [asking],
            engine,
            journal,
            CampaignConfig(proposals_per_round=1, max_candidates_per_task=4, confirm=False),
            learner=learner,
        )
    engine.close()
    assert sorted(learner.generations[0]) == ["test/a", "test/a", "test/b"]
    assert sorted(learner.generations[1]) == ["test/a", "test/a", "test/b"]


def test_a_run_ends_with_the_last_update_and_goes_no_further_when_called_again(tmp_path):
    learner = Unsatisfied()
    attempts = [script(n, speedup=1 + n / 10) for n in range(5)]
    config = CampaignConfig(
        proposals_per_round=1, max_candidates_per_task=5, max_updates=1, confirm=False
    )
    for _ in range(2):
        engine = LocalEngine(ScriptedEvaluator)
        asking = Versioned({"a": attempts, "b": attempts}, learner)
        with Journal(tmp_path) as journal:
            result = run_campaign(
                [make_task("a"), make_task("b")], [asking], engine, journal, config, learner=learner
            )
            tried = [len(journal.proposals(f"test/{name}")) for name in "ab"]
        engine.close()
        assert len(learner.generations) == 1
        assert tried == [2, 1]
        assert {row.reason for row in result.tasks} == {"max_updates (1) is reached"}


def test_a_task_that_was_to_begin_after_the_last_update_is_told_so(tmp_path):
    """It was said to have had no time, in a run without max_seconds."""
    learner, engine = Unsatisfied(), LocalEngine(ScriptedEvaluator)
    asking = Versioned({name: [script(n, speedup=2) for n in range(5)] for name in "bc"}, learner)
    config = CampaignConfig(
        proposals_per_round=1,
        max_candidates_per_task=5,
        max_updates=1,
        tasks_at_once=1,
        confirm=False,
    )
    with Journal(tmp_path) as journal:
        result = run_campaign(
            [make_task("b"), make_task("c")], [asking], engine, journal, config, learner=learner
        )
        assert not journal.proposals("test/c")
    engine.close()
    assert [row.reason for row in result.tasks] == ["max_updates (1) is reached"] * 2
    assert result.stopped is None


def test_nothing_is_learned_while_winners_are_confirmed(tmp_path):
    learner, engine = CountingLearner(), LocalEngine(Waits, lanes=2)

    def on_event(row):
        if row.stage is Stage.CONFIRMING or row.stage.final:
            Waits.go.set()  # test/b ends while test/a is confirmed

    with Journal(tmp_path) as journal:
        run_campaign(
            [make_task("a"), make_task("b")],
            [
                proposer(
                    {"a": [script(1, speedup=2, seconds=0.3)], "b": [script(2, status="TIMEOUT")]}
                )
            ],
            engine,
            journal,
            CampaignConfig(max_seconds=2.0),
            on_event,
            learner=learner,
        )
    engine.close()
    assert learner.calls <= 1, "before the first round, and never once the search is over"


@pytest.mark.parametrize("confirm", [True, False])
def test_what_was_judged_when_the_time_is_over_is_learned_from_where_nothing_is_confirmed(
    tmp_path, confirm
):
    learner, engine = CountingLearner(), LocalEngine(ScriptedEvaluator, lanes=1)
    script_of_a = [script(n, status="WRONG_VALUE", seconds=0.3) for n in range(20)]
    with Journal(tmp_path) as journal:
        result = run_campaign(
            [make_task("a")],
            [proposer({"a": script_of_a})],
            engine,
            journal,
            CampaignConfig(
                max_seconds=1.0, confirm=confirm, proposals_per_round=20, max_candidates_per_task=20
            ),
            learner=learner,
        )
        judged = len(journal.attempts("test/a"))
    engine.close()
    assert result.stopped is not None
    assert 0 < judged < 20
    assert learner.calls == (1 if confirm else 2), "before the first round, and at the end"
