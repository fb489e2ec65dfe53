"""A strategy turns the attempts so far into the questions of the next round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent.prompts.message import Message
from agent.prompts.render import Scene
from agent.types import Attempt
from sandbox.types import Language

PROPOSE, REPAIR, IMPROVE, CONTRAST = "propose", "repair", "improve", "contrast"
CROSSOVER, TUNE = "crossover", "tune"
ARM = "arm"
"""Among a proposal's features: which of a portfolio's arms asked for it."""


@dataclass(frozen=True)
class Ask:
    """One question to a model, and what its answer will have come from."""

    step: str
    language: Language
    messages: list[Message]
    parents: tuple[str, ...] = ()
    features: Mapping[str, str | int] = field(default_factory=dict)
    arm: str = ""
    """Of a portfolio. Equal questions of two arms are two requests."""
    model: str | None = None
    """Whom to ask; by default the campaign's models by their weights."""
    novel: bool = False
    """An answer that is a known program in other clothes counts as that one (novelty.py)."""


class Strategy(Protocol):
    """A frozen dataclass with a `kind` and its settings (configs/strategy); it keeps no state, and
    equal arguments give equal questions, so that a resumed or replayed campaign asks alike.
    """

    @property
    def kind(self) -> str: ...

    def asks(self, scene: Scene, history: Sequence[Attempt], n: int, round: int) -> Sequence[Ask]:
        """Up to `n` questions for the round; none when the strategy has ended."""
        ...
