"""The seam to language models: messages in, replies out. It knows neither kernels nor endpoints.

Implementations: `agent.models.endpoint` (any OpenAI-compatible server), `agent.models.batch` (files
in place of a server), `agent.models.replay` (a journal), `agent.models.mixture` (several by
weight), and `ScriptedModel` here, for tests and rehearsals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent.prompts.message import Message
from sandbox.errors import WarpsmithError

log = logging.getLogger(__name__)


class ModelError(WarpsmithError):
    """A model could not be asked, or what came back was not an answer."""


class Unavailable(ModelError):
    """A model cannot be asked at all: its server is not there, lets nobody in or is broken, or
    there is no such model.
    """


class CapReached(ModelError):
    """One request more could exceed what the campaign may spend; it was not sent."""


class AwaitingReplies(ModelError):
    """The requests are written to a file; the campaign goes on when their replies are imported."""

    def __init__(self, count: int) -> None:
        super().__init__(f"awaiting {count} {'reply' if count == 1 else 'replies'}")
        self.count = count


class RepliesMissing(ModelError):
    """Of a model's share of a round no reply came back, and some requests did not even fail: where
    nobody else answered either, they may be exported again.
    """

    def __init__(self, message: str, export_again: Callable[[], int]) -> None:
        """`export_again` returns how many requests now wait."""
        super().__init__(message)
        self.export_again = export_again


@dataclass(frozen=True)
class Reply:
    text: str
    reasoning: str | None = None
    """What the server returned beside the answer (`reasoning_content`)."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Where one request gave several replies its tokens are divided among them: sums stay right."""
    finish_reason: str | None = None
    """`stop`, or `length` where the token limit cut the reply off."""
    seconds: float = 0.0
    """Wall clock of the request this reply came with, retries left out."""
    cost_usd: float | None = None
    """By the price table, when it was bought; None where the model has no price."""
    model: str = ""
    """Who wrote it, as far as the endpoint's configuration says."""
    policy_version: int | None = None
    """Updates a policy in training has had; None for models that do not learn."""

    def __post_init__(self) -> None:
        # JSON may carry half a surrogate pair, which neither a file nor the journal can hold.
        for name in ("text", "reasoning"):
            said = getattr(self, name)
            if said is not None:
                object.__setattr__(self, name, said.encode(errors="replace").decode())


class Model(Protocol):
    @property
    def name(self) -> str: ...

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        """One reply to each prompt, in order; None where that request failed.

        Equal prompts of different draws are different requests, and of one draw the same: a model
        that keeps its replies answers the second time for nothing. Raises ModelError where all
        failed.
        """
        ...


@dataclass
class ScriptedModel:
    """A shipped double: hands out `replies` in order; raises ModelError after the last."""

    replies: Sequence[str | Reply]
    name: str = "scripted"
    prompts: list[list[Message]] = field(default_factory=list)
    """What was asked, one entry per reply handed out."""

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        return [self._next(messages) for messages in prompts]

    def _next(self, messages: Sequence[Message]) -> Reply:
        if len(self.prompts) >= len(self.replies):
            raise ModelError(f"{self.name}: the script ends after {len(self.replies)} replies")
        reply = self.replies[len(self.prompts)]
        self.prompts.append(list(messages))
        return Reply(reply, finish_reason="stop") if isinstance(reply, str) else reply


def settle(whose: str, replies: Sequence[Reply | None], errors: Sequence[ModelError]) -> None:
    """After several were asked at once: raises where one is awaited or none answered, else warns
    of those, such as one `model`, that did not.
    """
    awaiting = any(isinstance(error, AwaitingReplies) for error in errors)
    if awaiting or (errors and not any(replies)):
        raise _combined(errors)
    for failed in errors:
        log.warning("one %s's replies are missing: %s", whose, failed)


def _combined(errors: Sequence[ModelError]) -> ModelError:
    """That they are awaited, else that replies are missing, else the first one's error."""
    awaiting = [error.count for error in errors if isinstance(error, AwaitingReplies)]
    if awaiting:
        return AwaitingReplies(sum(awaiting))
    missing = [error for error in errors if isinstance(error, RepliesMissing)]
    if missing:
        return RepliesMissing(str(missing[0]), lambda: sum(e.export_again() for e in missing))
    return errors[0]
