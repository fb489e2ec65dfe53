"""Steps that a CUDA graph replays write what `generate` writes, and sooner."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("transformers")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rl.policy
from rl.config import SamplingConfig, ShapeConfig
from rl.policy import Policy, new_policy

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def test_replayed_steps_write_what_generate_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    shape = ShapeConfig(vocabulary=400, hidden=8, layers=1, heads=1, feed_forward=8, context=64)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).cuda()
    policy = Policy("toy", model, new_policy(["a b"], shape, "toy").tokenizer)
    sampling = SamplingConfig(max_new_tokens=200, batch=8, temperature=0.9, top_p=0.95)
    prompts = [[7 + row] * (10 + 5 * row) for row in range(8)]
    replies, seconds = {}, {}
    for way in ("graph", "generate"):
        if way == "generate":
            monkeypatch.setattr(rl.policy, "wanted", lambda _: False)
        for _ in range(2):
            began = time.monotonic()
            found = policy.sample(prompts, sampling, range(8))
            seconds[way] = time.monotonic() - began
        replies[way] = [sample.ids for sample in found if sample is not None]
    same = sum(a == b for a, b in zip(replies["graph"], replies["generate"], strict=True))
    assert same >= 7, "sums in another order may turn one draw"
    assert seconds["graph"] < seconds["generate"] / 2, seconds
