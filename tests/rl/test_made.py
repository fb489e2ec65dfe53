"""Kernels taken as made: what the feature proposer writes, asked for as the campaign would."""

import re
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("datasets", reason="needs the train extra")

from agent.config import OptimizeConfig
from agent.features.proposer import FeatureProposer
from agent.journals.journal import Journal
from agent.model import ScriptedModel
from agent.proposers import open_proposers
from agent.proposing.model_proposer import ModelProposer
from agent.proposing.replies import extract
from agent.proposing.scripted import scripted_evaluation
from agent.strategies.best_of_n import BestOfN
from agent.types import Measured, Turn
from kernelbench.suite import load_tasks
from rewards import speedup
from rewards.terms import format_share
from rl.config import HeldOut
from rl.data import build_dataset, known_of, load_examples, save_dataset, statements_of
from rl.made import made_examples
from rl.plain import plain
from sandbox.errors import ConfigError
from sandbox.types import EvalConfig, Status

FACTS = {"GPU": "one"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Of another task, without a model, on a GPU whose figures it knows."""
    (tmp_path / "run").mkdir()
    config = OptimizeConfig()
    with Journal(tmp_path / "run") as journal, open_proposers(journal, config, FACTS):
        journal.record_config(config)
        [task] = load_tasks("builtin/relu", "cuda")
        journal.record_task(task)
        other = Measured(1.5, {"compile": 1.0}, 0.75, 4e12, {}, 2e-6, 50 << 20)
        journal.record_measured(task.id, other)
    return tmp_path / "run"


def test_a_kernel_taken_as_made_answers_the_prompt_of_a_campaign(run):
    [task] = load_tasks("builtin/residual_add_layer_norm", "cuda")
    found = list(made_examples({task.id: 2}, run))
    drawn = FeatureProposer(order="random").propose(task, [], 2)
    sources = [plain(p.candidate.source) for p in drawn]
    assert [extract(e.reply).source for e in found] == sources
    # Two inputs and one result, at the bandwidth of the run's machine.
    moved = 2 * 3 * 8192 * 4096
    measured = Measured(None, {}, moved / 4e12 * 1e3, 4e12, {}, 2e-6, 50 << 20)
    proposer = ModelProposer(ScriptedModel([]), FACTS, BestOfN(), policy=EvalConfig())
    [ask] = proposer.asks(task, [], 1, Turn(0, measured))
    assert [e.messages for e in found] == [ask.messages] * 2


def test_kernels_taken_as_made_are_told_from_verified_ones_on_disk(run, tmp_path):
    found = list(made_examples({"synthetic:rows:12": 1}, run))
    assert {e.task_id for e in found} == {t.id for t in load_tasks("synthetic:rows:12", "cuda")}
    save_dataset(build_dataset(found, HeldOut(0.0, 0.0)), tmp_path / "data")
    kept = load_examples(tmp_path / "data")
    assert {(e.run, e.speedup) for e in kept} == {("", None)}
    chosen = {e.reply.partition("; ")[2].partition("\n")[0] for e in found}
    assert len(chosen) > 6, "nothing to choose among"


@pytest.mark.slow
def test_of_a_long_chain_there_are_more_kernels_than_of_a_short_one(run):
    lengths = {t.id: statements_of(t) for t in load_tasks("synthetic:rows:24", "cuda")}
    assert set(lengths.values()) >= {3, 4, 5}
    made = Counter(e.task_id for e in made_examples({"synthetic:rows:24": 2}, run))
    times = {1: 1, 2: 1, 3: 1, 4: 2, 5: 3}
    assert made == {id: 2 * times[length] for id, length in lengths.items()}


def test_some_tasks_teach_the_form_of_a_contrast_with_figures_of_measured_kernels(run):
    before = made_examples({"synthetic:rows:12": 1}, run, None, 2)
    assert {e.kind for e in before} == {"propose"}
    with Journal(run) as journal:
        [task] = journal.tasks()
        proposals = FeatureProposer().propose(task, [], 3)
        journal.record_proposals(0, proposals)
        for factor, proposal in enumerate(proposals, 1):
            figure = scripted_evaluation(proposal.candidate, EvalConfig(), Status.PASSED, factor)
            journal.record_evaluation(task, figure, reward=speedup.reward(figure))
    first = known_of(["synthetic:rows:1"], "cpu")
    found = list(made_examples({"synthetic:rows:24": 1}, run, first, 2))
    contrasts = [e for e in found if e.kind == "contrast"]
    assert len({e.task_id for e in found if e.kind == "propose"}) == 23
    assert first.met == {shape for _, shape in first.shapes}
    assert 1 <= len(contrasts) < 12
    counts = set()
    for example in contrasts:
        text = example.messages[1]["content"]
        shown = [part.partition("\n```")[0] for part in text.split("```python\n")[2:]]
        answer = extract(example.reply).source
        scores = [float(each) for each in re.findall(r"\(score: ([\d.]+)x\)", text)]
        assert len(scores) == len(shown)
        counts.add(len(scores))
        assert scores == sorted(scores)
        assert len({*shown, answer.rstrip()}) == len(shown) + 1
        assert not any("// Made" in source for source in shown), "not as a policy writes them"
        assert format_share(example.reply) == 1.0
    assert counts == {1, 2}


def test_kernels_of_tasks_like_an_evaluated_suite_are_not_made(run):
    builtin = known_of(["builtin"], "cpu")
    assert not list(made_examples({"builtin/softmax": 1}, run, builtin))
    assert len(builtin.met) == 1


def test_a_run_that_measured_nothing_tells_of_no_machine(tmp_path):
    (tmp_path / "empty").mkdir()
    with Journal(tmp_path / "empty"):
        pass
    with pytest.raises(ConfigError, match="tells of no machine"):
        list(made_examples({"builtin/relu": 1}, tmp_path / "empty"))
