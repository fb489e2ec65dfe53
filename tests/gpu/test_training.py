"""Training on a GPU: what a policy is taught and rewarded for becomes likelier."""

import math

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from rl.config import GrpoConfig, SamplingConfig, SftConfig, ShapeConfig, TrainConfig
from rl.policy import new_policy
from rl.trainers import Group, Tokens, fine_tune, optimizer_of, update

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

SHAPE = ShapeConfig(vocabulary=400, hidden=64, layers=2, heads=2, feed_forward=64, context=128)
TEXTS = ("a b c d e f", "g h i")


def test_a_policy_learns_on_a_gpu_what_it_is_taught_and_then_what_is_rewarded(tmp_path):
    policy = new_policy([*TEXTS] * 20, SHAPE, "toy", seed=1)
    policy.model.to("cuda")
    prompt = policy.reply_ids("say:")
    replies = [policy.reply_ids(text) for text in TEXTS]
    sft = SftConfig(epochs=60.0, batch=2, learning_rate=5e-3)
    grpo = GrpoConfig(group=2, learning_rate=1e-3)
    config = TrainConfig(device="cuda", sft=sft, rl=grpo)

    def likelihoods() -> list[float]:
        return [math.fsum(policy.log_probabilities(prompt, reply)) for reply in replies]

    precision = torch.get_float32_matmul_precision()
    optimizer_of(policy, config, tmp_path)
    assert torch.get_float32_matmul_precision() == precision, "the device is still to be measured"
    fine_tune(policy, [Tokens(prompt, reply) for reply in replies], config, tmp_path)
    taught = likelihoods()
    assert all(math.exp(each) > 0.3 for each in taught), "each of two is as likely as the other"
    greedy = SamplingConfig(greedy=True, max_new_tokens=20)
    [sample] = policy.sample([prompt], greedy, [0])
    assert sample is not None
    assert sample.text in TEXTS
    optimizer = optimizer_of(policy, config, tmp_path)
    update(policy, [Group("g", [prompt] * 2, replies, [0.0, 1.0])], optimizer, config, tmp_path)
    rewarded = likelihoods()
    assert rewarded[1] > taught[1]
    assert rewarded[0] < taught[0]
