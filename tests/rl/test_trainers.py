"""Supervised fine-tuning by TRL: what a batch's examples are worth beside each other."""

import math
import pickle
import sys
import types

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from rl.config import GrpoConfig, LoraConfig, SftConfig, ShapeConfig, TrainConfig
from rl.policy import load_policy, new_policy
from rl.replica import with_adapters
from rl.trainers import (
    WRAPPED,
    Group,
    Tokens,
    fine_tune,
    know_projectors,
    optimizer_of,
    update,
)
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


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_no_trainer_leaves_its_wrappers_or_hooks_on_the_model(lora, tmp_path):
    policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
    policy = with_adapters(policy, TrainConfig(device="cpu", lora=lora))
    config = TrainConfig(
        device="cpu",
        lora=lora,
        gradient_checkpointing=True,
        sft=SftConfig(epochs=1.0, batch=2),
        rl=GrpoConfig(group=2),
    )
    prompt, good, bad = (policy.reply_ids(text) for text in ("a", "b c", "e f"))
    for number in range(2):
        fine_tune(policy, [Tokens(prompt, good)] * 2, config, tmp_path / str(number))
        assert not any(module._forward_hooks for module in policy.model.modules())
        optimizer = optimizer_of(policy, config, tmp_path)
        group = Group("g", [prompt] * 2, [good, bad], [1.0, 0.0])
        update(policy, [group], optimizer, config, tmp_path / f"rl{number}")
        models = [policy.model, *([policy.model.get_base_model()] if lora else [])]
        assert not [name for model in models for name in WRAPPED if name in vars(model)]
        assert not any(module._forward_hooks for module in policy.model.modules())


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


def test_further_steps_on_the_same_rollouts_end_where_clipping_does(tmp_path):
    def moved(iterations: int, epsilon: float) -> float:
        policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
        grpo = GrpoConfig(
            group=2,
            learning_rate=0.3,
            iterations=iterations,
            epsilon=epsilon,
            epsilon_high=epsilon,
            max_grad_norm=1.0,
        )
        config = TrainConfig(device="cpu", optimizer="sgd", rl=grpo)
        prompt, good, bad = (policy.reply_ids(text) for text in ("a", "b c", "e f"))
        before = math.fsum(policy.log_probabilities(prompt, good))
        group = Group("g", [prompt] * 2, [good, bad], [1.0, 0.0])
        update(policy, [group], optimizer_of(policy, config, tmp_path), config, tmp_path)
        return math.fsum(policy.log_probabilities(prompt, good)) - before

    once = moved(1, 0.2)
    assert 0 < once < moved(2, 1e6) < moved(4, 1e6)
    assert moved(4, 1e-6) == pytest.approx(once, rel=1e-3), "the ratio left the range by step one"


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo"])
def test_replies_in_smaller_batches_take_the_same_steps(loss, tmp_path):
    def after(batch: int | None) -> list[float]:
        policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
        grpo = GrpoConfig(
            group=4, batch=batch, iterations=2, learning_rate=0.02, loss=loss, max_grad_norm=1e9
        )
        config = TrainConfig(device="cpu", optimizer="sgd", rl=grpo)
        prompt, *replies = (policy.reply_ids(t) for t in ("a", "b c", "e f", "c", "d e f a"))
        worth = [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, None, 0.3]]
        groups = [Group(f"g{i}", [prompt] * 4, replies, worth[i]) for i in range(2)]
        update(policy, groups, optimizer_of(policy, config, tmp_path), config, tmp_path)
        return [math.fsum(policy.log_probabilities(prompt, reply)) for reply in replies]

    assert after(1) == pytest.approx(after(None), rel=1e-5)
    assert after(2) == pytest.approx(after(None), rel=1e-5)


def test_what_fills_a_group_does_not_count(tmp_path):
    def after(group: int) -> list[float]:
        policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
        grpo = GrpoConfig(group=group, learning_rate=0.02, max_grad_norm=1e9)
        config = TrainConfig(device="cpu", optimizer="sgd", rl=grpo)
        prompt, *replies = (policy.reply_ids(t) for t in ("a", "b c", "e f", "d e f a"))
        groups = [Group("g", [prompt] * 3, replies, [1.0, 0.0, 0.3])]
        update(policy, groups, optimizer_of(policy, config, tmp_path), config, tmp_path)
        return [math.fsum(policy.log_probabilities(prompt, reply)) for reply in replies]

    assert after(5) == pytest.approx(after(3), rel=1e-5)


def test_a_reply_without_a_reward_takes_no_part_in_the_step(tmp_path):
    """A fault of ours, however long, is no token among those that a loss is the mean of."""

    def after(replies: int) -> list[float]:
        policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
        grpo = GrpoConfig(group=4, learning_rate=0.02, max_grad_norm=1e9)
        config = TrainConfig(device="cpu", optimizer="sgd", rl=grpo)
        texts = ("a", "b c", "e f", "d e f a", "f e d c b a f e d c b a")
        prompt, *written = (policy.reply_ids(t) for t in texts)
        worth = [1.0, 0.0, 0.3, None]
        group = Group("g", [prompt] * replies, written[:replies], worth[:replies])
        update(policy, [group], optimizer_of(policy, config, tmp_path), config, tmp_path)
        return [math.fsum(policy.log_probabilities(prompt, reply)) for reply in written]

    assert after(4) == pytest.approx(after(3), rel=1e-6)


def test_a_loss_that_is_normalised_by_batch_is_refused_smaller_ones():
    assert GrpoConfig(group=4, loss="bnpo").batch is None
    with pytest.raises(ValueError, match="bnpo"):
        GrpoConfig(group=4, loss="bnpo", batch=2)
    with pytest.raises(ValueError, match="divisor"):
        GrpoConfig(group=4, batch=3)


def test_an_optimizer_that_nobody_knows_or_has_is_one_line(tmp_path):
    policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
    for name, words in (("adamm", "no optimizer 'adamm'"), ("galore_adamw", "install")):
        with pytest.raises(ConfigError, match=words):
            optimizer_of(policy, TrainConfig(device="cpu", optimizer=name), tmp_path)


def test_a_call_that_has_no_step_left_to_take_tells_no_loss(tmp_path):
    """Killed after its last step: 0.0 would be the best loss ever seen."""

    def told() -> float | None:
        policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
        prompt, reply = policy.reply_ids("a b"), policy.reply_ids("c d e f")
        config = TrainConfig(device="cpu", sft=SftConfig(epochs=2.0, batch=1))
        figures, _ = fine_tune(policy, [Tokens(prompt, reply)], config, tmp_path)
        return figures.get("train_loss")

    first = told()
    assert first is not None
    assert first > 1
    assert told() is None


def test_what_training_says_is_a_line_now_and_then_and_an_update_nothing(tmp_path, capfd):
    """TRL printed all that it knows of every update, and a bar for every checkpoint."""
    policy = new_policy(["a b c d e f"] * 20, SHAPE, "toy", seed=1)
    config = TrainConfig(device="cpu", sft=SftConfig(epochs=15.0, batch=1), rl=GrpoConfig(group=2))
    prompt, good, bad = (policy.reply_ids(text) for text in ("a", "b c", "e f"))
    fine_tune(policy, [Tokens(prompt, good)] * 2, config, tmp_path / "sft")
    lines = capfd.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "step 10 of 30 (epoch 5.0 of 15)",
        "step 30 of 30 (epoch 15.0 of 15)",
    ]
    group = Group("g", [prompt] * 2, [good, bad], [1.0, 0.0])
    update(policy, [group], optimizer_of(policy, config, tmp_path), config, tmp_path / "rl")
    policy.save(tmp_path / "saved")
    load_policy(tmp_path / "saved")
    assert capfd.readouterr() == ("", "")


def test_what_galore_keeps_beside_tensors_is_read_again(tmp_path, monkeypatch):
    names = "galore_torch", "galore_torch.galore_projector"
    package, module = map(types.ModuleType, names)
    module.GaLoreProjector = type("GaLoreProjector", (), {"__module__": names[1]})
    for name, found in zip(names, (package, module), strict=True):
        monkeypatch.setitem(sys.modules, name, found)
    made = module.GaLoreProjector()
    made.rank = 8
    torch.save({"projector": made}, tmp_path / "kept")
    with pytest.raises(pickle.UnpicklingError, match="GaLoreProjector"):
        torch.load(tmp_path / "kept", weights_only=True)
    with torch.serialization.safe_globals([]):  # What is known behind it is what was before.
        know_projectors()
        assert torch.load(tmp_path / "kept", weights_only=True)["projector"].rank == 8
