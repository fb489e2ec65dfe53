"""Steps of one shape write what `generate` writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import rl.decoding
import rl.policy
from rl.config import SamplingConfig, ShapeConfig
from rl.decoding import able
from rl.policy import Policy, new_policy

SHAPE = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
}
SAMPLING = SamplingConfig(max_new_tokens=24, batch=8, temperature=0.9, top_p=0.95)
PROMPTS = [[7, 8, 9], [5] * 40, [11, 12, 13, 14, 15], list(range(20, 90)), [3]]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    shape = ShapeConfig(vocabulary=400, hidden=8, layers=1, heads=1, feed_forward=8, context=64)
    return new_policy(["a b c d e f"], shape, "toy").tokenizer


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def qwen() -> Any:
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE))


def adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    wanted = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(qwen(), wanted)


def samples(policy: Policy, sampling: SamplingConfig) -> list[list[int]]:
    found = policy.sample(PROMPTS, sampling, range(len(PROMPTS)))
    return [sample.ids for sample in found if sample is not None]


@pytest.mark.parametrize("make", [llama, qwen, adapted])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("tokens", [rl.decoding.PREFILLED, 40], ids=["at once", "in pieces"])
def test_a_reply_is_what_generate_writes(
    make: Any, greedy: bool, tokens: int, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rl.decoding, "PREFILLED", tokens)
    torch.manual_seed(1)
    policy = Policy("toy", make().float(), tokenizer)
    sampling = replace(SAMPLING, greedy=greedy)
    expected = samples(policy, sampling)
    assert any(len(ids) == SAMPLING.max_new_tokens for ids in expected)
    assert len({tuple(ids) for ids in expected}) > 1
    monkeypatch.setattr(rl.policy, "wanted", able)
    assert able(policy.model)
    assert samples(policy, sampling) == expected


def test_it_ends_soon_after_all_have_ended(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that likes the end token above all from the third token on."""
    policy = Policy("toy", llama(), tokenizer)
    end, asked = tokenizer.eos_token_id, []

    class Ending(torch.nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            asked.append(hidden.shape)
            logits = torch.zeros(*hidden.shape[:-1], SHAPE["vocab_size"])
            logits[..., end if len(asked) > 2 else 17] = 1.0
            return logits

    monkeypatch.setattr(policy.model, "lm_head", Ending())
    monkeypatch.setattr(rl.policy, "wanted", able)
    sampling = replace(SAMPLING, greedy=True, max_new_tokens=500)
    assert samples(policy, sampling) == [[17, 17, end]] * len(PROMPTS)
    assert len(asked) < 20


def test_layers_that_see_a_window_are_left_to_generate() -> None:
    windowed = Gemma3ForCausalLM(
        Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=16, num_experts=None)
    )
    assert not able(windowed)
    assert not able(MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=16)))
    assert able(MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)))
