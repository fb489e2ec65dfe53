"""Which models a campaign asks, as data: what a config says of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        if self.weight <= 0:
            raise ValueError(f"weight is {self.weight}; expected above 0")
        if self.concurrency < 1 or self.retries < 0:
            raise ValueError("expected concurrency of at least 1 and retries of at least 0")
