"""What training takes is measured on recorded rollouts, whatever the model's size."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.train_size import SIZES, Asked, make, recorded, repeated, run, texts
from rl.config import load_train
from rl.policy import load_policy

TINY = Qwen2Config(
    vocab_size=2000,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=32768,
)


@pytest.mark.parametrize(
    ("preset", "billions"), [("qwen2.5-coder-1.5b", 1.5437), ("qwen2.5-coder-7b", 7.6156)]
)
def test_a_size_is_that_of_its_preset(preset: str, billions: float) -> None:
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES[preset]))
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=1e-4)
    assert preset in load_train(preset).model.lower()


@pytest.mark.slow
def test_adapters_are_updated_by_recorded_rollouts_and_load_as_they_were(tmp_path: Path) -> None:
    preset = load_train("qwen2.5-coder-1.5b", device="cpu", dtype="float32")
    sampling, rl = replace(preset.sampling, batch=2), replace(preset.rl, group=2, batch=1)
    config = replace(preset, sampling=sampling, rl=rl)
    row = run(config, TINY, tmp_path, Asked(updates=2, groups=1, new_tokens=3))
    assert row["moved"]
    assert row["same_after_loading"]
    assert row["same_after_resuming"]
    assert 0 < row["trained_parameters"] < row["parameters"] / 2, "LoRA's alone"
    assert row["sampled"] == {"replies": 2, "tokens": 6}
    assert row["update"]["rollouts"] == 2
    assert set(row["seconds"]) >= {"update 1", "checkpoint", "resume", "update 2", "load again"}
    still = replace(config, optimizer="sgd", rl=replace(rl, learning_rate=0.0))
    row = run(still, TINY, tmp_path / "still", Asked(updates=1, groups=1, new_tokens=1))
    assert not row["moved"]


def test_recorded_rollouts_last_for_as_many_groups_as_are_asked_for(tmp_path: Path) -> None:
    preset = load_train("qwen2.5-coder-1.5b", device="cpu", dtype="float32")
    make(TINY, list(texts()), tmp_path, preset, "cpu")
    policy = load_policy(tmp_path, "", "cpu")
    known = list(recorded(policy, preset))
    assert len(known) >= 2
    assert all(len(set(group.rewards)) > 1 for group in known)
    told = policy.tokenizer.decode(known[0].replies[0], skip_special_tokens=True)
    assert told in set(texts())
    many = list(islice(repeated(known), 3 * len(known)))
    assert len({group.key for group in many}) == 3 * len(known)
