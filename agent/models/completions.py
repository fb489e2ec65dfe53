"""Chat completions as data: what a request says, the most it can cost, and its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.model import Reply
from agent.models.ledger import Caps, Spend
from agent.models.prices import Price
from agent.prompts.message import Message
from sandbox.errors import ConfigError

MOST_TOKENS = 1 << 53
"""Beyond any request: what a journal and JSON hold exactly."""
TEMPLATE_TOKENS, TOKENS_A_MESSAGE = 256, 16
"""Beyond the text: what chat templates add, generously. A token is at least one byte of text."""


def check_caps(model: str, caps: Caps, max_tokens: int | None, price: Price | None) -> None:
    """Raises ConfigError for a cap that could not be kept."""
    if caps.needs_limit and max_tokens is None:
        raise ConfigError(
            f"model {model!r}: a cap on tokens or money needs a limit of its replies: "
            "--max-reply-tokens, or max_tokens among the model's settings"
        )
    if caps.max_usd is not None and price is None:
        raise ConfigError(
            f"model {model!r} has no price, so max_usd cannot be kept; add it to the "
            "config's prices (input and output, US dollars per million tokens)"
        )


def sampling(
    temperature: float | None,
    max_tokens: int | None,
    extra: Mapping[str, object],
    *,
    official: bool,
) -> dict[str, Any]:
    """A request's options as keyword arguments of the SDK."""
    options: dict[str, Any] = {}
    if temperature is not None:
        options["temperature"] = temperature
    if max_tokens is not None:
        # OpenAI's reasoning models refuse the old name, older servers ignore the new one.
        options["max_completion_tokens" if official else "max_tokens"] = max_tokens
    if extra:
        options["extra_body"] = dict(extra)
    return options


def most_of(
    messages: Sequence[Message], n: int, max_tokens: int | None, price: Price | None
) -> Spend:
    """Bound of a request's cost from above; without `max_tokens` of its prompt alone."""
    text_bytes = sum(len(message["content"].encode()) for message in messages)
    prompt = text_bytes + TEMPLATE_TOKENS + TOKENS_A_MESSAGE * len(messages)
    completion = n * (max_tokens or 0)
    usd = 0.0 if price is None else price.cost_usd(prompt, completion)
    return Spend(1, prompt + completion, usd)


def cost_of(completion: Any, price: Price | None) -> Spend | None:
    """What the answer says it used; None where it does not say."""
    usage = getattr(completion, "usage", None)
    prompt = count_of(getattr(usage, "prompt_tokens", None))
    generated = count_of(getattr(usage, "completion_tokens", None))
    if prompt is None or generated is None:
        return None
    usd = 0.0 if price is None else price.cost_usd(prompt, generated)
    return Spend(1, prompt + generated, usd)


def count_of(value: object) -> int | None:
    """Of tokens; None for what is no such number, as JSON's NaN."""
    return value if type(value) is int and 0 <= value < MOST_TOKENS else None


def replies_of(
    completion: Any, seconds: float, model: str = "", price: Price | None = None
) -> list[Reply]:
    """At least one; raises AttributeError, TypeError or LookupError where the shape is wrong."""
    choices = completion.choices
    usage = completion.usage
    prompt = shares(count_of(usage and usage.prompt_tokens) or 0, len(choices))
    generated = shares(count_of(usage and usage.completion_tokens) or 0, len(choices))
    replies = [
        Reply(
            text=text_of(choice.message.content),
            reasoning=reasoning_of(choice.message.model_extra or {}),
            prompt_tokens=prompt[i],
            completion_tokens=generated[i],
            finish_reason=choice.finish_reason,
            seconds=seconds,
            cost_usd=None if price is None else price.cost_usd(prompt[i], generated[i]),
            model=model,
        )
        for i, choice in enumerate(choices)
    ]
    if not replies:
        raise LookupError("no choices")
    return replies


def text_of(content: object) -> str:
    """None, where a reply was cut off while reasoning, is an empty text; of parts, as servers that
    set reasoning apart among them send, those of text are.
    """
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(text_of(part["text"]) for part in content if part["type"] == "text")
    if not isinstance(content, str):
        raise TypeError(f"content is a {type(content).__name__}; expected a string")
    return content


def shares(total: int, parts: int) -> list[int]:
    """`total` divided into whole numbers that differ by at most one, largest first."""
    return [total // parts + (i < total % parts) for i in range(parts)]


def reasoning_of(extra: dict[str, object]) -> str | None:
    """vLLM and DeepSeek say `reasoning_content`, OpenRouter and newer vLLM `reasoning`."""
    for key in ("reasoning_content", "reasoning"):
        if isinstance(text := extra.get(key), str) and text:
            return text
    return None
