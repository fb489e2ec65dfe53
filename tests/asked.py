"""A model asked the same several times, as tests of models do."""

from collections.abc import Sequence

from agent.model import Model, Reply
from agent.prompts.message import Message


def complete(model: Model, messages: Sequence[Message], n: int, draw: str = "") -> list[Reply]:
    """`n` replies to one prompt, fewer where some requests failed."""
    return [reply for reply in model.complete_each([messages] * n, draw) if reply is not None]
