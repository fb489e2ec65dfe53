"""Constants that replies declare: how they are read, searched, recorded, and left alone."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.config import OptimizeConfig, load_optimize
from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from agent.loop.campaign import run_campaign
from agent.model import AwaitingReplies, ModelError, ScriptedModel
from agent.models.settings import ModelConfig
from agent.prompts.render import Scene
from agent.proposers import open_proposers
from agent.proposing.model_proposer import ModelProposer
from agent.proposing.scripted import scripted_evaluation
from agent.proposing.tuner import Tuning, TuningProposer, variants
from agent.proposing.tuning import template
from agent.replay import replay_run
from agent.runs import open_run
from agent.strategies.best_of_n import BestOfN
from agent.strategies.fsr import Fsr
from agent.strategies.lineage import open_failures
from agent.strategies.types import TUNE
from agent.types import FIRST_TURN, Attempt, Proposal, Turn
from rewards.types import Reward
from sandbox.errors import ConfigError
from sandbox.types import Candidate, EvalConfig, Language, Status, Task
from tests.agent.scripts import local_engine, make_task
from tests.doubles.openai_server import OpenAIServer

TASK = Task("t", "class Model: ...", "cpu")
KERNEL = """\
SRC = r'''
#define TILE 32  // tune: 16, 32, 64
constexpr int STAGES = 2;  // tune: 1,2,3
constexpr int FIXED = 4;
'''
THREADS = 256  # tune: 128, 512
class ModelNew: ...
"""


def candidate(source: str) -> Candidate:
    return Candidate(TASK.id, Language.CPP, source)


def test_constants_are_declared_in_python_and_in_kernels_alike():
    found = template(candidate(KERNEL))
    assert found is not None
    assert found.pool == {
        "TILE": ("16", "32", "64"),
        "STAGES": ("1", "2", "3"),
        "THREADS": ("128", "256", "512"),
    }
    assert found.point == {"TILE": "32", "STAGES": "2", "THREADS": "256"}


@pytest.mark.parametrize("blank", [" ", "\n", "\t"])
def test_a_long_gap_behind_a_number_is_read_once(blank):
    began_s = time.perf_counter()
    assert template(candidate("x = 1" + 20_000 * blank + "class ModelNew: ...")) is None
    assert time.perf_counter() - began_s < 1, "3 s where blanks are divided in every way"


def test_a_variant_differs_in_the_numbers_alone_and_keeps_its_declarations():
    base = template(candidate(KERNEL))
    assert base is not None
    made = base.at({"TILE": "64", "THREADS": "128"})
    assert "#define TILE 64  // tune: 16, 32, 64" in made.source
    assert made.source.replace("TILE 64", "TILE 32").replace("S = 128", "S = 256") == KERNEL
    other = template(made)
    assert other is not None
    assert other.key == base.key


@pytest.mark.parametrize(
    "line",
    [
        "x = 1",
        "x = 1  # tune it: 1, 2",
        "x = 1  # tune: a, b",
        "x = 1  # tune: 1",
        "x = f()  # tune: 1, 2",
        "x = 1  # tune: " + ", ".join(map(str, range(40))),
    ],
)
def test_what_is_no_declaration_is_left_alone(line):
    assert template(candidate(line + "\n")) is None


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("x: int = 4  # tune: 8", ("4", "8")),
        ("static const float A = 0.5f;  // tune: 0.25, 0.5", ("0.25", "0.5")),
        ("#define N -1 // tune: -1, 1e3", ("-1", "1e3")),
        ("    BLOCK = 4  # tune : 2 ,4", ("2", "4")),
        ("kernel(block=8, warps=4)  # tune: 2", None),
    ],
)
def test_the_number_before_the_comment_is_meant(line, values):
    found = template(candidate(line + "\n"))
    assert (None if found is None else found.tunables[0].values) == values


# --- the search ---------------------------------------------------------------------------------

GRID = "A = 1  # tune: 1, 2, 4, 8, 16\nB = 1  # tune: 1, 2, 4, 8, 16\nclass ModelNew: ...\n"
Speed = Callable[[dict[str, str]], float | None]


def judged(proposal: Proposal, speed: Speed) -> Attempt:
    found = template(proposal.candidate)
    value = speed({} if found is None else found.point)
    status = Status.WRONG_VALUE if value is None else Status.PASSED
    evaluation = scripted_evaluation(proposal.candidate, EvalConfig(), status, value or 1.0)
    return Attempt(proposal, evaluation, Reward(1.0))


def tuned(history: list[Attempt], speed: Speed, settings: Tuning, n: int = 2) -> list[Attempt]:
    """The history with every variant that the tuner asks for, judged."""
    while made := variants(history, n, settings):
        history = history + [judged(proposal, speed) for proposal in made]
    return history


def hill(point: dict[str, str]) -> float | None:
    """Best at A = 8, B = 2; A = 16 does not run."""
    a, b = int(point["A"]), int(point["B"])
    return None if a == 16 else 4.0 / (1 + abs(math.log2(a / 8)) + abs(math.log2(b / 2)))


def test_the_search_climbs_to_the_best_point_without_trying_all():
    root = judged(Proposal(candidate(GRID), "m"), hill)
    history = tuned([root], hill, Tuning(variants=14), n=1)
    points = [template(a.proposal.candidate).point for a in history]
    assert {"A": "8", "B": "2"} in points
    assert len(history) <= 15
    assert len({tuple(p.items()) for p in points}) == len(points), "nothing twice"


def test_a_small_pool_is_tried_out_and_the_tuner_then_rests():
    source = "A = 1  # tune: 1, 2\nB = 1  # tune: 1, 2\n"
    root = judged(Proposal(candidate(source), "m"), lambda point: 1.0)
    history = tuned([root], lambda point: 1.0, Tuning(variants=50))
    points = {tuple(template(a.proposal.candidate).point.values()) for a in history}
    assert points == set(itertools.product("12", "12"))


def test_a_program_among_the_slower_half_gets_its_first_rung_only():
    def one(name: str) -> Proposal:
        return Proposal(candidate(f"# {name}\n{GRID}"), name)

    speeds = {"p1": 1.0, "p2": 2.0, "p3": 3.0, "p4": 4.0}

    def measured(proposal: Proposal) -> Attempt:
        base = speeds[proposal.proposer.removesuffix("+tuner")]
        return judged(proposal, lambda p: base + int(p["A"]) / 100 + int(p["B"]) / 100)

    history = [measured(one(name)) for name in speeds]
    while made := variants(history, 1, Tuning(variants=8)):
        history.append(measured(made[0]))
    counts = {n: sum(a.proposal.proposer == f"{n}+tuner" for a in history) for n in speeds}
    assert counts == {"p1": 2, "p2": 2, "p3": 4, "p4": 8}


def test_variants_know_their_parent_their_author_and_their_values():
    root = judged(Proposal(candidate(GRID), "big"), hill)
    [made] = variants([root], 1, Tuning())
    assert (made.strategy, made.proposer) == (TUNE, "big+tuner")
    assert made.parents == (root.proposal.candidate.id,)
    point = template(made.candidate).point
    assert made.features == {f"tune {name}": value for name, value in point.items()}
    assert (made.prompt, made.reply, made.usage.prompt_tokens) == (None, None, 0)


def test_only_correct_programs_are_tuned_and_failed_variants_are_not_repaired():
    wrong = judged(Proposal(candidate(GRID), "m"), lambda point: None)
    assert variants([wrong], 3, Tuning()) == []
    root = judged(Proposal(candidate(GRID), "m"), hill)
    [made] = variants([root], 1, Tuning())
    failed = judged(made, lambda point: None)
    assert open_failures([root, failed], 2) == []


def test_equal_attempts_are_tuned_alike():
    root = judged(Proposal(candidate(GRID), "m"), hill)
    assert variants([root], 4, Tuning(), seed=3) == variants([root], 4, Tuning(), seed=3)


class Broken:
    """A model's proposer that cannot be asked."""

    name = "broken"
    wants_measured = False

    def __init__(self, error: ModelError) -> None:
        self.error = error

    def unsupported(self, task: Task) -> str | None:
        return None

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        raise self.error


def test_a_model_that_cannot_be_asked_leaves_the_variants():
    root = judged(Proposal(candidate(GRID), "m"), hill)
    proposer = TuningProposer(Broken(ModelError("gone")), Tuning())
    assert [p.strategy for p in proposer.propose(TASK, [root], 4)] == [TUNE, TUNE]
    with pytest.raises(ModelError):
        proposer.propose(TASK, [], 4)
    waiting = TuningProposer(Broken(AwaitingReplies(1)), Tuning())
    with pytest.raises(AwaitingReplies):
        waiting.propose(TASK, [root], 4)


def test_the_model_gets_the_rest_of_the_round_and_is_told_of_declarations():
    root = judged(Proposal(candidate(GRID), "m"), hill)
    model = ScriptedModel(["```python\nclass ModelNew: ...\n```"] * 2)
    proposer = TuningProposer(ModelProposer(model, {}, BestOfN(), tuning=True), Tuning())
    made = proposer.propose(TASK, [root], 4)
    assert [p.strategy for p in made] == [TUNE, TUNE, "best-of-n propose", "best-of-n propose"]
    assert "# Tunable constants" in model.prompts[0][0]["content"]


def test_the_best_variant_is_what_the_model_improves_next():
    root = judged(Proposal(candidate(GRID), "m"), hill)
    history = tuned([root], hill, Tuning(variants=14), n=1)
    [ask] = Fsr().asks(Scene(TASK, Language.CPP), history, 1, 3)
    assert "A = 8  # tune:" in ask.messages[1]["content"]


def declaring(prompt: str, number: int) -> str:
    """A reply whose own speed is its tunable constant."""
    line = f"# scripted: speedup=1.{number + 10}  # tune: 1.5, 2.0, 2.5"
    return f"```python\n{line}\nclass ModelNew:\n    n = {number}\n```\n"


def test_a_tuned_campaign_finds_the_values_and_is_decided_again(tmp_path, monkeypatch):
    config = OptimizeConfig(
        device="cpu",
        models=(ModelConfig("m"),),
        strategy=BestOfN(),
        tuning=Tuning(first_rung=3),
        keep_replies=False,
        proposals_per_round=2,
        max_candidates_per_task=8,
    )
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with OpenAIServer([], any_model=True, answering=declaring) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        rows = record(tmp_path, config)
        asked = sum(int(request.body.get("n", 1)) for request in server.requests)
    [best] = [r for r in rows if r.evaluation and r.evaluation.speedup.value == 2.5][:1]
    assert best.proposal.proposer == "m+tuner"
    assert asked == sum(r.proposal.reply is not None for r in rows) == 5
    assert replay_run(tmp_path / "first", "again", tmp_path)[1] == []


def record(runs: Path, config: OptimizeConfig) -> list[Recorded]:
    engine = local_engine()
    with (
        open_run("first", config, runs) as journal,
        open_proposers(journal, config, {}) as proposers,
    ):
        run_campaign([make_task("a")], proposers, engine, journal, config.campaign())
    engine.close()
    with Journal(runs / "first", read_only=True) as journal:
        return journal.proposals("test/a")


def test_tuning_is_off_unless_a_config_turns_it_on(tmp_path):
    assert load_optimize().tuning is None
    path = tmp_path / "c.yaml"
    path.write_text("tuning: {}\n")
    assert load_optimize(str(path)).tuning == Tuning()
    path.write_text("tuning: {variant: 3}\n")
    with pytest.raises(ConfigError, match="did you mean 'tuning\\.variants'"):
        load_optimize(str(path))
