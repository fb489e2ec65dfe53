"""Supervised fine-tuning by TRL: what a batch's examples are worth beside each other."""

import math

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from rl.config import GrpoConfig, SftConfig, ShapeConfig, TrainConfig
from rl.policy import new_policy
from rl.trainers import Group, Tokens, fine_tune, optimizer_of, update
from sandbox.errors import ConfigError

SHAPE = ShapeConfig(vocabulary=400, hidden=32, layers=2, heads=2, feed_forward=32, context=64)


def test_what_examples_are_padded_with_does_not_count(tmp_path):
    """Batches have no mask; the loss is that of each example by itself."""
    policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
    ids = policy.reply_ids("a b c d e f a b c d e f")
    examples = [Tokens(ids[:2], ids[2:4]), Tokens(ids[:3], ids[3:]), Tokens(ids[:1], ids[1:6])]
    alone = [policy.log_probabilities(e.prompt, e.reply) for e in examples]
    expected = -math.fsum(map(math.fsum, alone)) / sum(map(len, alone))
    sft = SftConfig(epochs=1.0, batch=3, learning_rate=1e-9, warmup_share=0.0)
    figures, _ = fine_tune(policy, examples, TrainConfig(device="cpu", sft=sft), tmp_path)
    assert figures["train_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["adamw_torch", "adafactor", "sgd"])
def test_the_optimizer_of_the_config_takes_the_step(name, tmp_path):
    policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
    grpo = GrpoConfig(group=2, learning_rate=0.01)
    config = TrainConfig(device="cpu", optimizer=name, rl=grpo)
    prompt, good, bad = (policy.reply_ids(text) for text in ("a", "b c", "e f"))
    before = math.fsum(policy.log_probabilities(prompt, good))
    optimizer = optimizer_of(policy, config, tmp_path)
    update(policy, [Group("g", [prompt] * 2, [good, bad], [1.0, 0.0])], optimizer, config, tmp_path)
    assert math.fsum(policy.log_probabilities(prompt, good)) > before


def test_an_optimizer_that_nobody_knows_or_has_is_one_line(tmp_path):
    policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
    for name, words in (("adamm", "no optimizer 'adamm'"), ("galore_adamw", "install")):
        with pytest.raises(ConfigError, match=words):
            optimizer_of(policy, TrainConfig(device="cpu", optimizer=name), tmp_path)
