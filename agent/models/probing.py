"""`warpsmith doctor --model`: one request to an endpoint, and what it tells about it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from agent.model import ModelError
from agent.models.endpoint import OpenAIModel
from agent.prompts.message import Message
from sandbox.doctor import Finding

QUESTION = [Message(role="user", content="Answer with the single word: ready")]
TIMEOUT_S = 120.0
CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length")
"""What vLLM, OpenRouter and others call it in their list of models."""


def probe(name: str) -> list[Finding]:
    """The model of that name at OPENAI_BASE_URL; raises ConfigError without a key."""
    with closing(OpenAIModel(name, retries=0, timeout_s=TIMEOUT_S)) as model:
        return probe_model(model)


def probe_model(model: OpenAIModel) -> list[Finding]:
    """The endpoint answers or not, how fast, how long its context is, and whether `n` works."""
    who = f"{model.name} at {model.base_url}"
    try:
        replies = model.ask_once(QUESTION, 2)
        honours = len(replies) == 2
        how = "honoured" if honours else "ignored: replies are asked for one by one"
        if not replies:
            how = "refused: replies are asked for one by one"
            replies = model.ask_once(QUESTION, 1)
    except ModelError as error:
        return [Finding("model", False, str(error), "see the message")]
    reply = replies[0]
    tokens = sum(r.prompt_tokens + r.completion_tokens for r in replies)
    counted = f"{tokens} tokens" if tokens else "token counts are not reported"
    limit = context_limit(model)
    return [
        Finding("model", True, f"{who}: replied in {reply.seconds:.2f} s, {counted}"),
        Finding("model: n", honours, f"n = 2 is {how}", needed=False),
        Finding(
            "model: context",
            limit is not None,
            f"{limit} tokens" if limit is not None else "the endpoint does not say",
            needed=False,
        ),
    ]


def context_limit(model: OpenAIModel) -> int | None:
    """As the endpoint's list of models has it, in whichever of the usual places."""
    try:
        served = model.ask_served()
    except ModelError:
        return None
    own = next((entry for entry in served if entry.get("id") == model.name), None)
    if own is None:
        return None
    places: list[dict[str, Any]] = [own, *(v for v in own.values() if isinstance(v, dict))]
    found = (place.get(key) for place in places for key in (*CONTEXT_KEYS, "n_ctx_train"))
    return next((value for value in found if isinstance(value, int)), None)
