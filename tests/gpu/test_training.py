"""Training on a GPU: what a policy is taught and rewarded for becomes likelier."""

import math
from dataclasses import replace

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from rl.config import GrpoConfig, SamplingConfig, SftConfig, ShapeConfig, TrainConfig
from rl.policy import new_policy
from rl.replica import Replica
from rl.trainers import Group, Tokens, fine_tune, optimizer_of, update
from sandbox.errors import WarpsmithError

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


def test_an_offloaded_policy_leaves_its_gpu_and_learns_and_writes_the_same(tmp_path):
    policy = new_policy([*TEXTS] * 20, SHAPE, "toy", seed=1)
    policy.save(tmp_path / "start")
    prompt = policy.reply_ids("say:")
    replies = [policy.reply_ids(text) for text in TEXTS]
    group = Group("g", [prompt] * 2, replies, [0.0, 1.0])
    config = TrainConfig(device="cuda", rl=GrpoConfig(group=2, learning_rate=1e-3))
    seen, held = {}, {}
    for offload in (False, True):
        replica = Replica(replace(config, offload=offload), "cuda")
        replica.open(tmp_path / "start", None, tmp_path / "scratch")
        for _ in range(2):  # The second step needs what the first left in the optimizer.
            replica.update([group])
        held[offload] = torch.cuda.memory_allocated()
        saved = tmp_path / str(offload) / "2"
        replica.save(saved)
        written = replica.sample([prompt] * 4, SamplingConfig(max_new_tokens=20), range(4))
        replica.close()
        replica.open(tmp_path / "start", saved, tmp_path / "scratch")
        weights = [parameter.detach().cpu() for parameter in replica.policy.model.parameters()]
        seen[offload] = [sample.ids for sample in written if sample], weights
        replica.close()
    assert held[False] - held[True] > 2 * sum(w.nbytes for w in seen[True][1]), "weights and Adam's"
    assert seen[True][0] == seen[False][0]
    torch.testing.assert_close(seen[True][1], seen[False][1])


def test_a_policy_holds_no_more_than_its_share_of_the_gpu(tmp_path):
    policy = new_policy([*TEXTS] * 20, SHAPE, "toy", seed=1)
    policy.save(tmp_path / "start")
    try:
        with pytest.raises(WarpsmithError, match="no room for it in 0% of its memory"):
            Replica(TrainConfig(device="cuda", memory_share=1e-6), "cuda").load(tmp_path / "start")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
