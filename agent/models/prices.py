"""What a token costs: a table of model names, from configs/prices or a file of the user's.

A price is what the table says, not what a provider bills: discounts for cached prompts are ignored
(so an estimate errs upwards), and `batch` is the provider's own factor for batch files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PER_TOKEN = 1e-6


@dataclass(frozen=True)
class Price:
    """Of one model, in US dollars per million tokens."""

    input: float
    output: float
    batch: float = 1.0
    """Factor on both for requests in a batch file."""

    def __post_init__(self) -> None:
        if not (self.input >= 0 and self.output >= 0 and self.batch >= 0):
            raise ValueError(f"prices are {self.input} and {self.output}; expected none below 0")

    def cost_usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        return PER_TOKEN * (prompt_tokens * self.input + completion_tokens * self.output)

    def in_batches(self) -> Price:
        return Price(self.input * self.batch, self.output * self.batch)


Prices = Mapping[str, Price]


def price_of(model: str, prices: Prices) -> Price | None:
    """By the model's full name, else by the longest entry that ends in `*` and begins it."""
    if model in prices:
        return prices[model]
    stems = [name for name in prices if name.endswith("*") and model.startswith(name[:-1])]
    return prices[max(stems, key=len)] if stems else None
