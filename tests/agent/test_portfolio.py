"""A bandit over strategies and models, and candidates that go where headroom is left."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agent.config import OptimizeConfig, load_optimize
from agent.engines.engine import LocalEngine
from agent.journals.journal import Journal
from agent.journals.outcome import CampaignResult
from agent.journals.recorded import Recorded
from agent.loop.allocation import Allocation, Standing, fruitless_rounds, headroom, next_wave
from agent.loop.campaign import run_campaign
from agent.model import Reply, ScriptedModel
from agent.models.mixture import Mixture
from agent.models.settings import ModelConfig
from agent.prompts.render import Scene
from agent.proposers import open_proposers
from agent.proposing.asks import answers
from agent.proposing.scripted import ScriptedEvaluator, scripted_evaluation
from agent.replay import differences, replay_run
from agent.runs import open_run
from agent.strategies.best_of_n import BestOfN
from agent.strategies.fsr import Fsr
from agent.strategies.islands import GENERATION
from agent.strategies.portfolio import Portfolio, gains, scores
from agent.strategies.types import ARM
from agent.types import FIRST_TURN, Attempt, Measured, Proposal, Usage
from rewards.types import Reward
from sandbox.errors import ConfigError
from sandbox.types import Candidate, EvalConfig, Language, Status, Task
from tests.agent.scripts import make_task
from tests.doubles.openai_server import OpenAIServer

TASK = Task("t", "class Model: ...", "cpu")
SCENE = Scene(TASK, Language.CPP)
TWO = Portfolio(arms=(Fsr(depth=99), BestOfN()))


def attempt(
    name: str, speedup: float | None, arm: str | None, generation: int = 0, tokens: int = 10
) -> Attempt:
    candidate = Candidate(TASK.id, Language.CPP, f"class ModelNew:\n    name = {name!r}\n")
    status = Status.WRONG_VALUE if speedup is None else Status.PASSED
    evaluation = scripted_evaluation(candidate, EvalConfig(), status, speedup or 1.0)
    features = {} if arm is None else {ARM: arm, GENERATION: generation}
    usage = Usage(tokens, tokens)
    proposal = Proposal(candidate, "m", f"portfolio {arm} x", (), features, usage=usage)
    return Attempt(proposal, evaluation, Reward(None))


def arms_of(strategy: Portfolio, history: Sequence[Attempt], n: int, round: int = 1) -> Counter:
    return Counter(ask.arm for ask in strategy.asks(SCENE, history, n, round))


def test_until_something_is_correct_only_the_first_arm_asks():
    wrong = attempt("w", None, "fsr")
    assert arms_of(TWO, [wrong], 3) == {"fsr": 3}
    assert [a.step for a in TWO.asks(SCENE, [wrong], 2, 1)] == ["fsr repair", "fsr propose"]


def test_an_arm_that_has_ended_leaves_its_questions_to_the_others():
    ends = Portfolio(arms=(Fsr(depth=2), BestOfN()))
    gained = [attempt("seed", 1.0, "fsr"), attempt("fast", 9.0, "fsr", 1)]
    assert arms_of(ends, gained, 3, round=1)["fsr"] == 2
    assert arms_of(ends, gained, 3, round=2) == {"best-of-n": 3}
    assert arms_of(ends, [attempt("w", None, "fsr")], 3, round=2) == {"best-of-n": 3}
    assert arms_of(Portfolio(arms=(Fsr(depth=2),)), gained, 3, round=2) == {}


def test_every_arm_is_tried_once_and_then_those_that_gain():
    seed = attempt("seed", 1.5, None)
    assert arms_of(TWO, [seed], 2) == {"fsr": 1, "best-of-n": 1}
    history = [seed, attempt("a", 3.0, "best-of-n", 1), attempt("b", 1.0, "fsr", 1)]
    assert arms_of(TWO, history, 4, 2)["best-of-n"] >= 3


def test_of_equal_gains_the_cheaper_arm_wins():
    seed = attempt("seed", 1.0, None)
    dear = attempt("a", 1.5, "fsr", 1, tokens=500)
    cheap = attempt("b", 1.5, "best-of-n", 1, tokens=10)
    assert arms_of(TWO, [seed, dear, cheap], 3, 2) == {"best-of-n": 3}


def test_gains_are_counted_against_the_best_before_the_round():
    history = [
        attempt("seed", 1.2, None),
        attempt("a", 2.4, "fsr", 1),
        attempt("b", 2.4, "best-of-n", 1),
        attempt("c", 2.0, "fsr", 2),
    ]
    assert [gain for _, gain in gains(history)][1:] == [pytest.approx(1.0), pytest.approx(1.0), 0.0]


def test_an_answer_that_was_known_costs_and_gains_nothing():
    repeat = attempt("again", 2.0, "best-of-n", 1).proposal
    found = scores([attempt("seed", 1.0, None)], [repeat])["best-of-n"]
    assert (found.pulls, found.gain, found.cost) == (1, 0.0, 20.0)


def test_an_arm_repairs_its_own_failures_only():
    history = [attempt("good", 2.0, None), attempt("bad", None, "best-of-n")]
    asks = Portfolio(arms=(Fsr(depth=9),)).asks(SCENE, history, 4, 1)
    assert {ask.step for ask in asks} == {"fsr improve"}


def test_arms_are_strategies_times_models_and_each_answer_is_its_models():
    strategy = Portfolio(arms=(Fsr(depth=9), BestOfN()), models=("a", "b"))
    asks = strategy.asks(SCENE, [attempt("good", 2.0, None)], 4, 1)
    assert [ask.arm for ask in asks] == ["fsr a", "fsr b", "best-of-n a", "best-of-n b"]
    mixture = Mixture([ScriptedModel([Reply(n)] * 9, n) for n in ("a", "b")], [1.0, 1.0])
    replies = answers(mixture, asks, TASK, FIRST_TURN)
    assert [reply and reply.text for reply in replies] == ["a", "b", "a", "b"]


def test_of_several_models_the_one_that_a_portfolio_names_is_asked_alone():
    names = (ModelConfig("a"), ModelConfig("b"))
    portfolio = Portfolio(arms=(BestOfN(),), models=("b",))
    asks = OptimizeConfig(models=names, strategy=portfolio).asking.asks(SCENE, [], 9, 0)
    mixture = Mixture([ScriptedModel([Reply(n)] * 9, n) for n in ("a", "b")], [1.0, 1.0])
    assert {reply.text for reply in answers(mixture, asks, TASK, FIRST_TURN) if reply} == {"b"}
    [alone] = OptimizeConfig(models=names[:1], strategy=Portfolio()).asking.asks(SCENE, [], 1, 0)
    assert (alone.arm, alone.model) == ("fsr", None)


def test_a_model_that_fails_loses_the_questions_of_its_arms_alone_and_is_named(caplog):
    strategy = Portfolio(arms=(BestOfN(),), models=("a", "b"))
    asks = strategy.asks(SCENE, [attempt("good", 2.0, None)], 2, 1)
    mixture = Mixture([ScriptedModel([], "a"), ScriptedModel(["yes"], "b")], [1.0, 1.0])
    replies = answers(mixture, asks, TASK, FIRST_TURN)
    assert [reply and reply.text for reply in replies] == [None, "yes"]
    assert "one arm's replies are missing: a: the script ends" in caplog.text


# --- across tasks -------------------------------------------------------------------------------


def recorded(*rounds: Sequence[float | None], floor_ms: float | None = None) -> list[Recorded]:
    """Speedups by round; a failure is None. The reference takes 1 ms."""
    found: list[Recorded] = []
    for number, speedups in enumerate(rounds):
        for speedup in speedups:
            source = f"class ModelNew: n = {len(found)}"
            candidate = Candidate("t", Language.CPP, source)
            status = Status.WRONG_VALUE if speedup is None else Status.PASSED
            judged = scripted_evaluation(candidate, EvalConfig(), status, speedup or 1.0, floor_ms)
            row = Recorded(len(found), number, Proposal(candidate, "m"), False, judged, Reward(1.0))
            found.append(row)
    return found


@pytest.mark.parametrize(
    ("rounds", "fruitless"),
    [
        ([], 0),
        ([[None], [None]], 2),
        ([[None], [0.5]], 0),
        ([[2.0], [1.0, None], [2.03]], 2),
        ([[2.0], [1.0], [2.2], [2.2]], 1),
    ],
)
def test_a_round_is_fruitful_with_a_first_pass_or_two_per_cent(rounds, fruitless):
    assert fruitless_rounds(recorded(*rounds)) == fruitless


def test_a_task_is_done_at_its_roofline_or_after_fruitless_rounds_unless_turned_off():
    near, stuck = recorded([2.0], floor_ms=0.46), recorded([2.0], [1.0], [1.0])
    assert Allocation().ended(near) == "at 92 % of the roofline"
    assert Allocation(patience=2).ended(stuck) == "no gain in 2 rounds"
    off = Allocation(stop_at_roofline=None, patience=None)
    assert (off.ended(near), off.ended(stuck)) == ("", "")


def test_headroom_is_what_the_roofline_leaves_the_best_or_else_eager():
    measured = Measured(eager_ms=1.0, floor_ms=0.1)
    assert headroom(recorded([2.0], floor_ms=0.1), measured) == pytest.approx(1.609, abs=1e-3)
    assert headroom([], measured) == pytest.approx(2.303, abs=1e-3)
    assert headroom([], None) > 0


def test_waves_spend_in_proportion_to_headroom():
    granted: Counter[str] = Counter()
    rooms = {"wide": 3.0, "narrow": 1.0, "none": 0.0}
    for _ in range(40):
        standings = [Standing(n, h, granted[n], 99) for n, h in rooms.items()]
        granted.update(list(next_wave(standings, 99, 3, wave=1)))
    assert granted == {"wide": 30, "narrow": 10}


def test_a_wave_keeps_to_what_is_left_and_to_the_tasks_own_caps():
    standings = [Standing("a", 3.0, 0, 2), Standing("b", 2.0, 0, 9), Standing("c", 1.0, 0, 9)]
    assert next_wave(standings, 4, 3, wave=4) == {"a": 2, "b": 2}
    assert next_wave(standings, 0, 3, wave=4) == {}


def far_reply(prompt: str, number: int) -> str:
    """Task 0 is far from its roofline, task 1 nearer, task 2 reaches it at once."""
    dice = random.Random(f"{number} {prompt}")
    task = next(i for i in range(3) if f"id: test/{i}" in prompt)
    floor_ms, most = ((0.01, 4.0), (0.2, 3.0), (0.5, 1.96))[task]
    speedup = dice.uniform(0.5, most) if task < 2 else most
    line = f"speedup={speedup:.3f} floor_ms={floor_ms}"
    return f"```python\n# scripted: {line}\nclass ModelNew:\n    n = {dice.random()}\n```\n"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch):
    with OpenAIServer([], any_model=True, answering=far_reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield server


def settings(**across: object) -> OptimizeConfig:
    return OptimizeConfig(
        device="cpu",
        models=(ModelConfig("one"), ModelConfig("two")),
        strategy=Portfolio(across=Allocation(wave=1, **across)),
        keep_replies=False,
        proposals_per_round=2,
        max_candidates_per_task=20,
        max_candidates=24,
    )


def run(
    runs: Path, name: str, config: OptimizeConfig, stop_after: int | None = None, lanes: int = 1
) -> tuple[CampaignResult, Mapping[str, int]]:
    """A campaign over three tasks, asked to stop after some evaluations; candidates by task."""
    engine = LocalEngine(ScriptedEvaluator, lanes=lanes)
    with (
        open_run(name, config, runs) as journal,
        open_proposers(journal, config, {}) as proposers,
    ):
        judged = lambda: sum(len(journal.attempts(f"test/{i}")) for i in range(3))  # noqa: E731
        result = run_campaign(
            [make_task(str(i)) for i in range(3)],
            proposers,
            engine,
            journal,
            config.campaign(),
            interrupted=lambda: stop_after is not None and judged() >= stop_after,
        )
    engine.close()
    return result, {row.task_id: row.tried for row in result.tasks}


def test_candidates_go_where_headroom_is_left_and_a_task_at_its_roofline_ends(tmp_path, endpoint):
    result, tried = run(tmp_path, "first", settings(patience=None))
    assert sum(tried.values()) == 24
    assert tried["test/0"] > tried["test/1"] > tried["test/2"]
    assert result.tasks[2].reason == "at 98 % of the roofline"


@pytest.mark.slow
def test_an_even_share_is_still_to_be_had(tmp_path, endpoint):
    _, even = run(tmp_path, "even", settings(spend="even", patience=None, stop_at_roofline=None))
    assert even == {"test/0": 8, "test/1": 8, "test/2": 8}


def test_fruitless_rounds_end_a_task_and_leave_its_candidates_to_others(tmp_path, endpoint):
    result, tried = run(tmp_path, "first", settings(patience=1))
    assert {row.reason for row in result.tasks[:2]} == {"no gain in 1 rounds"}
    assert sum(tried.values()) < 24


@pytest.mark.slow
def test_a_portfolio_campaign_is_decided_again_from_its_journal(tmp_path, endpoint):
    run(tmp_path, "first", settings())
    result, found = replay_run(tmp_path / "first", "again", tmp_path)
    assert found == []
    assert result.tried > 12, "waves were granted"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "stop_after", [pytest.param(3, marks=SLOW), 13, pytest.param(15, marks=SLOW)]
)
def test_a_stopped_portfolio_goes_on_as_if_it_had_not_been(tmp_path, endpoint, stop_after):
    # Which of two arms asks the same first is chance: the answer must not depend on it.
    endpoint.answering = lambda prompt, number: far_reply(prompt, 0)
    run(tmp_path, "whole", settings(), lanes=2)
    run(tmp_path, "parts", settings(), stop_after)
    run(tmp_path, "parts", settings())
    with (
        Journal(tmp_path / "parts", read_only=True) as parts,
        Journal(tmp_path / "whole", read_only=True) as whole,
    ):
        assert parts.starts() == 2
        assert [json.loads(g) for g in parts.events("granted")] == [
            json.loads(g) for g in whole.events("granted")
        ]
        found = differences(parts, whole)
    assert [d for d in found if d.what not in ("usage", "confirmation")] == []


def test_the_preset_names_its_arms_and_settings_go_over_it(tmp_path):
    preset = load_optimize(strategy="portfolio").strategy
    assert preset == Portfolio(arms=Portfolio().arms)
    path = tmp_path / "c.yaml"
    path.write_text(
        "strategy:\n  kind: portfolio\n  arms: [fsr, {kind: evolve, islands: 3}]\n"
        "  across: {patience: 2}\n"
    )
    strategy = load_optimize(str(path)).strategy
    assert isinstance(strategy, Portfolio)
    assert [arm.kind for arm in strategy.arms] == ["fsr", "evolve"]
    assert (strategy.across.patience, strategy.across.first_share) == (2, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arms: [fsrr]", "no strategy preset; did you mean 'fsr'"),
        ("arms: [fsr, fsr]", "each of another kind"),
        ("arms: [{kind: fsr, deep: 2}]", "unknown key 'strategy.arms.0.deep'"),
        ("across: {patients: 2}", "did you mean 'strategy.across.patience'"),
        ("across: {patience: 0}", "expected 1 or more"),
        ("models: [big]", "names 'big', which is not asked"),
    ],
)
def test_a_mistake_in_a_portfolio_is_one_clear_line(tmp_path, text, words):
    path = tmp_path / "c.yaml"
    path.write_text(f"model: small\nstrategy:\n  kind: portfolio\n  {text}\n")
    with pytest.raises(ConfigError) as raised:
        load_optimize(str(path))
    assert words in str(raised.value)
