"""Evaluation suites are never trained on unless the config says so, and then all that comes of it
says so too.
"""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from agent.config import OptimizeConfig, load_optimize
from agent.features.proposer import FeatureProposer
from agent.journals.journal import Journal
from agent.prompts.message import Message
from agent.proposing.scripted import scripted_evaluation
from agent.types import Measured
from kernelbench.suite import load_tasks
from rewards import speedup
from rl.campaign import learning, tasks_of
from rl.config import HeldOut, SamplingConfig, ShapeConfig, TrainConfig
from rl.data import Example, dataset_of
from rl.grpo import GrpoLearner
from rl.local import LocalModel
from rl.opening import local_policy
from rl.policy import load_policy, new_policy
from rl.sft import sft
from sandbox.errors import ConfigError
from sandbox.types import EvalConfig, Status
from tests.asked import complete

REFUSED = "evaluation suite's, and never trained on"
SHAPE = ShapeConfig(vocabulary=400, hidden=32, layers=1, heads=2, feed_forward=32, context=128)
CONFIG = TrainConfig(
    name="toy",
    device="cpu",
    shape=SHAPE,
    held_out=HeldOut(families=0.0, tasks=0.0),
    sampling=SamplingConfig(max_new_tokens=8),
)
PROMPT = [Message(role="user", content="faster")]
LESSON = Example("kernelbench/level1/1_A", "f", "c", "s", "propose", PROMPT, "a reply", None, "run")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A campaign's, with a verified kernel of a task that has KernelBench's name."""
    folder = tmp_path / "run"
    folder.mkdir()
    with Journal(folder) as journal:
        journal.record_config(OptimizeConfig())
        journal.record_facts({"CPU": "two cores"})
        task = replace(load_tasks("builtin/relu", "cpu")[0], id=LESSON.task_id)
        journal.record_task(task)
        journal.record_measured(task.id, Measured(eager_ms=0.5))
        [proposal] = FeatureProposer().propose(task, [], 1)
        journal.record_proposals(0, [proposal])
        found = scripted_evaluation(proposal.candidate, EvalConfig(), Status.PASSED, 1.5)
        journal.record_evaluation(task, found, reward=speedup.reward(found))
    return folder


@pytest.mark.parametrize("suite", ["kernelbench:nowhere", "hf:ScalingIntelligence/KernelBench"])
def test_a_campaign_does_not_learn_on_an_evaluation_suite(tmp_path, suite):
    (tmp_path / "policy").mkdir()
    config = load_optimize(tasks=(suite,), model=f"local:{tmp_path / 'policy'}", learn=True)
    with pytest.raises(ConfigError, match=REFUSED), local_policy(config):
        pass


@pytest.fixture
def level(tmp_path: Path) -> Path:
    """One level of a checkout as a plain folder, with a problem in it."""
    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    (folder / "19_ReLU.py").write_text(load_tasks("builtin/relu", "cpu")[0].source)
    return folder


def test_a_level_given_as_a_plain_folder_is_not_learned_on_either(tmp_path, level):
    (tmp_path / "policy").mkdir()
    config = load_optimize(
        tasks=(str(level),), model=f"local:{tmp_path / 'policy'}", learn=True, device="cpu"
    )
    with pytest.raises(ConfigError, match=f"file/level1/19_ReLU is an {REFUSED}"):
        learning(config, CONFIG)
    settings = replace(CONFIG, tasks=(str(level),))
    with pytest.raises(ConfigError, match=f"file/level1/19_ReLU is an {REFUSED}"):
        tasks_of(settings, ("train",))
    assert tasks_of(replace(settings, transductive=True), ("train",)) == (str(level),)
    assert learning(config, replace(CONFIG, transductive=True)).tasks_at_once == 1


def test_nor_are_its_kernels_training_data(tmp_path, level):
    lesson = replace(LESSON, task_id=load_tasks(str(level), "cpu")[0].id)
    with pytest.raises(ConfigError, match=REFUSED):
        sft([lesson], CONFIG, tmp_path / "policy", "cpu", None)


def test_kernels_of_an_evaluation_suite_are_no_training_data(run):
    with pytest.raises(ConfigError, match=f"{LESSON.task_id} is an {REFUSED}"):
        dataset_of([run], CONFIG, None)
    assert dataset_of([run], replace(CONFIG, transductive=True), None)["train"]


def test_nor_are_they_where_another_config_made_them_data(tmp_path):
    with pytest.raises(ConfigError, match=REFUSED):
        sft([LESSON], CONFIG, tmp_path / "policy", "cpu", None)


def test_a_policy_that_was_trained_on_them_says_so_in_every_row_for_good(tmp_path):
    config = replace(CONFIG, transductive=True, sft=replace(CONFIG.sft, epochs=1.0))
    sft([LESSON] * 20, config, tmp_path / "first", "cpu", None)
    fair = replace(LESSON, task_id="file/mine")
    sft(
        [fair] * 20,
        replace(config, transductive=False),
        tmp_path / "then",
        "cpu",
        tmp_path / "first",
    )
    policy = load_policy(tmp_path / "then")
    assert policy.transductive
    model = LocalModel(policy, CONFIG.sampling)
    assert model.name == "toy-transductive"
    assert [r.model for r in complete(model, PROMPT, 1)] == ["toy-transductive@0"]


def test_what_learns_with_such_a_config_says_so_in_its_checkpoints(tmp_path):
    new_policy(["a reply"] * 20, SHAPE, "toy").save(tmp_path / "start")
    for name, transductive in (("fair", False), ("not", True)):
        config = replace(CONFIG, transductive=transductive)
        learner = GrpoLearner(tmp_path / name, tmp_path / "start", config, "cpu")
        learner._save()
        again = load_policy(tmp_path / name / "learner" / "0")
        assert again.transductive is transductive
