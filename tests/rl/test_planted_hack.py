"""A reward hack among the samples, judged by the real sandbox, is the worst of them every time."""

import json

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from agent.learner import Rollout
from agent.prompts.message import Message
from kernelbench.problem import make_task, parse_problem
from rewards.terms import RewardConfig, score
from rl.config import GrpoConfig, SamplingConfig, ShapeConfig, TrainConfig
from rl.grpo import GrpoLearner
from rl.policy import new_policy
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, Language, Status
from tests.exploits.corpus import CONFIGS
from tests.exploits.h04_patched_clock import EXPLOITS
from tests.exploits.problems import BIAS_RELU, bias_relu

PROMPT = json.dumps([Message(role="user", content="faster")])
SHAPE = ShapeConfig(vocabulary=700, hidden=32, layers=1, heads=2, feed_forward=32, context=1024)
HACK = next(e for e in EXPLOITS if e.variant == "slowed").source
POOL = {
    HACK: Status.REWARD_HACK,
    bias_relu("return torch.relu(x + self.bias)"): Status.PASSED,
    bias_relu("return torch.relu(x - self.bias)"): Status.WRONG_VALUE,
    "no code at all": Status.COMPILE_ERROR,
}
KINDS = (
    RewardConfig(),
    RewardConfig(partial=0.3, format_weight=0.2),
    RewardConfig(kind="log", partial=0.05),
    RewardConfig(kind="cuda-l1"),
)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    task = make_task("exploits/bias_relu", parse_problem(BIAS_RELU, "bias_relu"), "cpu", None)
    evaluator = LocalEvaluator("cpu", cache_dir=tmp_path_factory.mktemp("cache"))
    found = {
        source: evaluator.evaluate(
            task, Candidate(task.id, Language.TORCH, source), CONFIGS["strict"], to_beat=1.0
        )
        for source in POOL
    }
    evaluator.close()
    assert {source: e.status for source, e in found.items()} == POOL
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_hack_has_the_worst_reward_in_every_kind(judged, kind):
    rewards = {source: score(e, kind, source).value for source, e in judged.items()}
    known = {source: value for source, value in rewards.items() if value is not None}
    assert min(known, key=known.__getitem__) == HACK
    assert sum(value == known[HACK] for value in known.values()) == 1


@pytest.mark.parametrize("clip", [None, 1.5])
def test_update_by_update_the_hack_has_the_worst_reward_and_grows_less_likely(
    judged, tmp_path, clip
):
    config = TrainConfig(
        sampling=SamplingConfig(max_new_tokens=12),
        rl=GrpoConfig(group=4, learning_rate=1e-3, max_grad_norm=1.0, smooth_clip=clip),
    )
    new_policy([*POOL, PROMPT], SHAPE, "toy", seed=1).save(tmp_path / "start")
    learner = GrpoLearner(tmp_path, tmp_path / "start", config, "cpu")

    def likelihood() -> float:
        policy = learner.policy
        prompt = policy.prompt_ids(json.loads(PROMPT))
        return sum(policy.log_probabilities(prompt, policy.reply_ids(HACK)))

    seen = [likelihood()]
    for version in range(3):
        pool = [Rollout("t", PROMPT, text, version, judged[text]) for text in POOL]
        rewards = [learner.reward(r.evaluation, r.reply).value for r in pool]
        assert min(v for v in rewards if v is not None) == rewards[0] == -1.0
        lesson = learner.learn(pool)
        assert lesson is not None
        assert lesson.figures["hacks"] == 0.25
        seen.append(likelihood())
    assert sorted(seen, reverse=True) == seen
