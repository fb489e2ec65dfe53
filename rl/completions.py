"""Completions of vLLM as data: what a request for one reply says, and the reply it brings.

Tokens both ways, so that the gradient is that of what was sampled. Fields: vLLM 0.33.0,
entrypoints/openai/completion/protocol.py; `token_ids` came with 0.10.2. That these hold the end
token: v1/engine/detokenizer.py, which leaves it out of the text alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.model import ModelError
from rl.config import SamplingConfig
from rl.policy import Sample

NEUTRAL: Mapping[str, object] = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Said every time: what is left out the server takes from the model's generation_config, and then
samples from another distribution than the one that is trained."""


def request(
    model: str, prompt: Sequence[int], sampling: SamplingConfig, seed: int, room: int, end: int
) -> dict[str, object]:
    """The body that asks `model` for one reply of at most `room` tokens, of which `end` is the
    last where it is reached.
    """
    return {
        **NEUTRAL,
        "model": model,
        "prompt": list(prompt),
        "max_tokens": min(sampling.max_new_tokens, room),
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": 1.0 if sampling.greedy else sampling.top_p,
        "seed": seed,
        # A reply ends where the policy ends it: generation_configs name further tokens.
        "ignore_eos": True,
        "stop_token_ids": [end],
        "return_token_ids": True,
    }


def reply_ids(body: Any, end: int) -> list[int]:
    """The tokens that were sampled; raises ModelError where they are not all there."""
    try:
        choice = body["choices"][0]
        ids, reason = choice.get("token_ids"), choice["finish_reason"]
    except (LookupError, TypeError, AttributeError) as error:
        raise ModelError("its answer is not a completion") from error
    if not isinstance(ids, list) or not ids:
        raise ModelError(
            "no token ids with a reply, and the gradient is to be of those that were sampled; "
            "expected a server that knows return_token_ids, as vLLM from 0.10.2 on"
        )
    # An end that is also the last token permitted may be called one of length.
    if reason not in ("stop", "length") or (reason == "stop" and ids[-1] != end):
        raise ModelError(f"a reply ended by {reason!r}, without its end token")
    return [int(token) for token in ids]


def sample_of(ids: list[int], prompt: Sequence[int], tokenizer: Any, seconds: float) -> Sample:
    """As Policy.sample makes it of the same tokens."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    return Sample(ids, text, ids[-1] == tokenizer.eos_token_id, len(prompt), seconds)
