"""What training takes is measured on recorded rollouts, whatever the model's size."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from transformers import Qwen2Config

from benchmarks.train_size import SIZES, recorded, run, texts
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


@pytest.mark.parametrize("preset", sorted(SIZES))
def test_a_size_is_that_of_its_preset(preset: str) -> None:
    shape = Qwen2Config(**SIZES[preset])
    layer = (
        2 * shape.hidden_size * shape.hidden_size
        + 2
        * shape.hidden_size
        * shape.num_key_value_heads
        * (shape.hidden_size // shape.num_attention_heads)
        + 3 * shape.hidden_size * shape.intermediate_size
    )
    embedding = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    billions = (layer * shape.num_hidden_layers + embedding) / 1e9
    told = float(preset.rpartition("-")[2].removesuffix("b"))
    assert billions == pytest.approx(told, rel=0.1)
    assert preset in load_train(preset).model.lower()


def test_adapters_are_updated_by_recorded_rollouts_and_load_as_they_were(tmp_path: Path) -> None:
    preset = load_train("qwen2.5-coder-1.5b", device="cpu", dtype="float32")
    sampling, rl = replace(preset.sampling, batch=2), replace(preset.rl, group=2, batch=1)
    row = run(
        replace(preset, sampling=sampling, rl=rl), TINY, tmp_path, updates=2, groups=1, new_tokens=3
    )
    assert row["same_after_loading"]
    assert 0 < row["trained_parameters"] < row["parameters"] / 2, "LoRA's alone"
    assert row["sampled"] == {"replies": 2, "tokens": 6}
    assert row["losses"] != [0.0, 0.0]
    assert set(row["seconds"]) >= {"sample", "update 1", "update 2", "load again"}
    policy = load_policy(tmp_path / "start", "", "cpu")
    groups = list(recorded(policy, preset))
    assert len(groups) >= 2
    assert all(len(set(group.rewards)) > 1 for group in groups)
    told = policy.tokenizer.decode(groups[0].replies[0], skip_special_tokens=True)
    assert told in set(texts())
