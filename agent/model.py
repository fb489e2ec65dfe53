"""Language models behind one seam: messages in, replies out. The only module that imports openai.

`OpenAIModel` speaks to any OpenAI-compatible chat endpoint (OpenAI, vLLM, SGLang, llama.cpp,
`transformers serve`); `ScriptedModel` answers from a list, for tests and rehearsals. Neither knows
what a kernel is, and neither keeps state between calls that could change an answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import openai

from agent.prompts.message import Message
from sandbox.errors import ConfigError, WarpsmithError

log = logging.getLogger(__name__)
T = TypeVar("T")

OPENAI_URL = "https://api.openai.com/v1"
SHOWN_CHARACTERS = 300
"""Of a server's own error text; some answer with a whole HTML page."""

SECRET_CHARACTERS = 8
"""A shorter key is a local server's placeholder, and may be part of any word."""


class ModelError(WarpsmithError):
    """A model could not be asked, or what came back was not an answer."""


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
    """Wall clock of the request this reply came with, retries included."""


class Model(Protocol):
    @property
    def name(self) -> str: ...

    def complete(self, messages: Sequence[Message], n: int) -> list[Reply]:
        """`n` replies to one prompt, fewer (never none) where some requests failed.

        Raises ModelError where all failed.
        """
        ...

    def complete_each(self, prompts: Sequence[Sequence[Message]]) -> list[Reply | None]:
        """One reply to each prompt, in order; None where that request failed.

        Raises ModelError where all failed.
        """
        ...


@dataclass
class ScriptedModel:
    """A shipped double: hands out `replies` in order; raises ModelError after the last."""

    replies: Sequence[str | Reply]
    name: str = "scripted"
    prompts: list[list[Message]] = field(default_factory=list)
    """What was asked, one entry per reply handed out."""

    def complete(self, messages: Sequence[Message], n: int) -> list[Reply]:
        return [self._next(messages) for _ in range(n)]

    def complete_each(self, prompts: Sequence[Sequence[Message]]) -> list[Reply | None]:
        return [self._next(messages) for messages in prompts]

    def _next(self, messages: Sequence[Message]) -> Reply:
        if len(self.prompts) >= len(self.replies):
            raise ModelError(f"{self.name}: the script ends after {len(self.replies)} replies")
        reply = self.replies[len(self.prompts)]
        self.prompts.append(list(messages))
        return Reply(reply, finish_reason="stop") if isinstance(reply, str) else reply


@dataclass(frozen=True)
class OpenAIModel:
    """A chat model behind an OpenAI-compatible endpoint. Settings only, so it can be pickled."""

    name: str
    base_url: str | None = None
    """Default: OPENAI_BASE_URL, else OpenAI itself."""
    api_key: str | None = field(default=None, repr=False)
    """Default: OPENAI_API_KEY."""
    temperature: float | None = None
    """None leaves it to the server: some reasoning models refuse the parameter."""
    max_tokens: int | None = None
    """Per reply, reasoning included."""
    timeout_s: float = 600.0
    """Per request."""
    concurrency: int = 8
    """Requests in flight at once, within one call."""
    retries: int = 4
    """After 429, 5xx, time-outs and lost connections; the SDK's backoff, 0.5 to 8 s."""

    def __post_init__(self) -> None:
        url = self.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        key = self.api_key or os.environ.get("OPENAI_API_KEY")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigError(
                f"model address is {url!r}; expected a URL such as http://localhost:8000/v1 "
                "(base_url or OPENAI_BASE_URL)"
            )
        if not key:
            raise ConfigError(
                f"model {self.name!r} at {url} needs a key: set OPENAI_API_KEY "
                "(a local server without keys takes any value)"
            )
        if self.concurrency < 1:
            raise ConfigError(f"model concurrency is {self.concurrency}; expected at least 1")
        object.__setattr__(self, "base_url", url)
        object.__setattr__(self, "api_key", key)

    def complete(self, messages: Sequence[Message], n: int) -> list[Reply]:
        if n < 1:
            return []
        return run_async(self._complete(messages, n))

    def complete_each(self, prompts: Sequence[Sequence[Message]]) -> list[Reply | None]:
        if not prompts:
            return []
        return run_async(self._complete_each(prompts))

    async def _complete(self, messages: Sequence[Message], n: int) -> list[Reply]:
        async with _Session(self) as session:
            replies = await session.ask(messages, n)
            missing = n - len(replies)
            try:
                # Many servers ignore n, or refuse it; the rest is asked for one by one.
                more = await session.ask_each([messages] * missing) if missing > 0 else []
            except ModelError:
                if not replies:
                    raise
                more = []
            return [*replies, *(reply for reply in more if reply is not None)][:n]

    async def _complete_each(self, prompts: Sequence[Sequence[Message]]) -> list[Reply | None]:
        async with _Session(self) as session:
            return await session.ask_each(prompts)


class _Session:
    """One client on one event loop, with the limit on requests in flight."""

    def __init__(self, model: OpenAIModel) -> None:
        self.model = model
        self.slots = asyncio.Semaphore(model.concurrency)
        self.client = openai.AsyncOpenAI(
            base_url=model.base_url,
            api_key=model.api_key,
            timeout=model.timeout_s,
            max_retries=model.retries,
        )

    async def __aenter__(self) -> _Session:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.client.close()

    async def ask_each(self, prompts: Sequence[Sequence[Message]]) -> list[Reply | None]:
        """One reply to each prompt, None where that failed; raises the first error if all did."""
        asked = (self.ask(messages, 1) for messages in prompts)
        replies: list[Reply | None] = []
        errors: list[ModelError] = []
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, ModelError):
                errors.append(outcome)
                replies.append(None)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                replies.append(outcome[0])
        if len(errors) == len(prompts):
            raise errors[0]
        for error in errors:
            log.warning("one reply is missing: %s", error)
        return replies

    async def ask(self, messages: Sequence[Message], n: int) -> list[Reply]:
        """What one request returned: 1 to `n` replies, none where the server refuses n > 1."""
        options: dict[str, Any] = {}
        if n > 1:
            options["n"] = n
        if self.model.temperature is not None:
            options["temperature"] = self.model.temperature
        if self.model.max_tokens is not None:
            # OpenAI's reasoning models refuse the old name, older servers ignore the new one.
            official = urlsplit(str(self.model.base_url)).hostname == urlsplit(OPENAI_URL).hostname
            options["max_completion_tokens" if official else "max_tokens"] = self.model.max_tokens
        async with self.slots:
            start_s = time.monotonic()
            try:
                completion = await self.client.chat.completions.create(
                    model=self.model.name, messages=list(messages), **options
                )
                seconds = time.monotonic() - start_s
            except openai.BadRequestError as error:
                if n > 1:
                    return []
                raise await self._explained(error) from error
            # ValueError: a body that is not JSON under a JSON content type.
            except (openai.OpenAIError, ValueError) as error:
                raise await self._explained(error) from error
        try:
            return replies_of(completion, seconds)
        # The SDK checks no types: any JSON may be in there.
        except (AttributeError, TypeError, LookupError) as error:
            raise ModelError(f"{self._who}: its answer is not a chat completion") from error

    @property
    def _who(self) -> str:
        return f"model {self.model.name!r} at {self.model.base_url}"

    async def _explained(self, error: Exception) -> ModelError:
        """One line: what failed, and what to do about it."""
        tries = f"after {self.model.retries + 1} tries"
        said = " ".join(str(error).split())
        if len(key := str(self.model.api_key)) >= SECRET_CHARACTERS:
            said = said.replace(key, "<key>")
        said = said[:SHOWN_CHARACTERS]
        match error:
            case openai.APITimeoutError():
                why = f"no reply within {self.model.timeout_s:g} s, {tries}; raise the time-out?"
            case openai.APIConnectionError():
                cause = error.__cause__ or error
                why = f"cannot be reached ({cause}); is it running, is OPENAI_BASE_URL right?"
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                why = f"the key was refused ({error.status_code}); check OPENAI_API_KEY"
            case openai.NotFoundError():
                why = f"no such model or address (404); {await self._served()}"
            case openai.RateLimitError():
                why = f"rate limit or quota (429) {tries}; lower the concurrency? {said}"
            case openai.InternalServerError():
                why = f"server error {tries}: {said}"
            case openai.APIStatusError():
                why = f"the request was refused: {said}"
            case _:
                why = f"its answer is not a chat completion: {said}"
        return ModelError(f"{self._who}: {why}")

    async def _served(self) -> str:
        try:
            models = await self.client.models.list()
            return "it serves: " + (", ".join(model.id for model in models.data) or "nothing")
        except (openai.OpenAIError, ValueError, AttributeError, TypeError):
            # Any body at all may come back here, and the 404 above is the error to report.
            return "check the model's name and OPENAI_BASE_URL"


def replies_of(completion: Any, seconds: float) -> list[Reply]:
    """At least one; raises AttributeError, TypeError or LookupError where the shape is wrong."""
    choices = completion.choices
    usage = completion.usage
    prompt = shares((usage and usage.prompt_tokens) or 0, len(choices))
    generated = shares((usage and usage.completion_tokens) or 0, len(choices))
    replies = [
        Reply(
            text=text_of(choice.message.content),
            reasoning=reasoning_of(choice.message.model_extra or {}),
            prompt_tokens=prompt[i],
            completion_tokens=generated[i],
            finish_reason=choice.finish_reason,
            seconds=seconds,
        )
        for i, choice in enumerate(choices)
    ]
    if not replies:
        raise LookupError("no choices")
    return replies


def text_of(content: object) -> str:
    """None, where a reply was cut off while reasoning, is an empty text."""
    if content is None:
        return ""
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


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Runs to the end, also where a loop is already running (a notebook, an async Ray actor)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
