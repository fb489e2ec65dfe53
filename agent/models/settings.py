"""Which models a campaign asks, as data: what a config says of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.limits import ABOVE_0, FieldError, Least, refuse_too_small

LEAST = {
    "weight": ABOVE_0,
    "max_tokens": Least(1),
    "timeout_s": ABOVE_0,
    "concurrency": Least(1),
    "retries": Least(0),
}
OURS = frozenset(("model", "messages", "n", "max_tokens", "stream"))
"""Fields of a request's body by which caps are kept and answers read."""


@dataclass(frozen=True)
class ModelConfig:
    """One model at an OpenAI-compatible endpoint. Keys are never part of it."""

    name: str
    base_url: str | None = None
    """By default OPENAI_BASE_URL, else OpenAI itself."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key."""
    weight: float = 1.0
    """Its share of the requests, against the other models' weights."""
    temperature: float | None = None
    max_tokens: int | None = None
    """Per reply, reasoning included; a cap on tokens or money needs it."""
    timeout_s: float = 600.0
    concurrency: int = 8
    retries: int = 4
    extra: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Further fields of a request's body, such as `reasoning_effort`."""

    def __post_init__(self) -> None:
        refuse_too_small(self, LEAST)
        if taken := sorted(OURS & self.extra.keys()):
            raise FieldError("extra", f"holds {taken[0]!r}, which a request says by itself")
