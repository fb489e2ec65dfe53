"""A chat model behind an OpenAI-compatible endpoint. The only module that imports openai.

It speaks to OpenAI, vLLM, SGLang, llama.cpp, `transformers serve`. Every HTTP request, retries
included, is reserved in the ledger before it is sent. What becomes of replies is grouping.py's. It
does not know what a kernel is.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import openai

from agent.model import CapReached, ModelError, Reply, Unavailable
from agent.models.completions import check_caps, cost_of, most_of, replies_of, sampling
from agent.models.grouping import Grouping
from agent.models.ledger import Ledger, Reservation, Spend
from agent.models.prices import Price
from agent.models.store import ReplyStore
from agent.prompts.message import Message
from sandbox.errors import ConfigError

T = TypeVar("T")

OPENAI_URL = "https://api.openai.com/v1"
SHOWN_CHARACTERS = 300
"""Of a server's own error text; some answer with a whole HTML page."""
SECRET_CHARACTERS = 8
"""A shorter key is a local server's placeholder, and may be part of any word."""
BACKOFF_S = (0.5, 8.0)
"""First and longest wait before a retry; it doubles in between."""
LONGEST_WAIT_S = 60.0
"""That a server's Retry-After is honoured for."""
RESERVE_POLL_S = 0.02
"""Between looks at the ledger while requests in flight hold the last of a cap."""
GRACE_S = 1.0
"""Beyond a time-out: where no byte came for so long the HTTP library gives up by itself, and knows
whether anything was sent. What blank lines keep alive it would wait for without end."""
NO_JSON = (ValueError, RecursionError)
"""What the SDK raises where a body says it is JSON, and is not, or is nested too deeply."""
RETRIED = frozenset((408, 409, 429))
"""Statuses below 500 that may pass by themselves."""
LASTING = (
    openai.APIConnectionError,
    openai.AuthenticationError,
    openai.PermissionDeniedError,
    openai.NotFoundError,
)
"""What the SDK raises where it is the server, the key or the model's name, after all retries."""
DOWN = frozenset((502, 503, 504))
"""Statuses of who stands before a server that is not there; 500 may be of one request alone."""
UNSENT = frozenset(("ConnectError", "ConnectTimeout"))
"""What the HTTP library raises where nothing was sent, so nothing can be billed."""

REACHED = {
    "DecodingError": "its answer is not compressed as it says",
    "TooManyRedirects": "it redirects again and again; is that address right?",
}
"""What the HTTP library raises where the server was reached, and what that means."""


@dataclass(frozen=True)
class Answer:
    """Of a route that is not chat completions."""

    body: Any
    """What its JSON says; the text of an answer that is none."""
    seconds: float
    """Wall clock of the request, retries left out."""


@dataclass(frozen=True)
class OpenAIModel:
    """Settings, and the books it keeps; the connection is opened by the first request."""

    name: str
    base_url: str | None = None
    """Default: OPENAI_BASE_URL, else OpenAI itself."""
    api_key: str | None = field(default=None, repr=False)
    """Default: the variable `api_key_env`."""
    api_key_env: str = "OPENAI_API_KEY"
    temperature: float | None = None
    """None leaves it to the server: some reasoning models refuse the parameter."""
    max_tokens: int | None = None
    """Per reply, reasoning included."""
    timeout_s: float = 600.0
    """Per request."""
    concurrency: int = 8
    """Requests in flight at once, over all tasks."""
    retries: int = 4
    """After 429, 5xx, time-outs and lost connections."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the request's body, such as `reasoning_effort`."""
    seed: int = 0
    """Tells runs apart whose kept replies must differ; it is not sent."""
    price: Price | None = None
    ledger: Ledger = field(default_factory=Ledger)
    store: ReplyStore | None = None
    _line: _Line = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        url = self.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        key = self.api_key or os.environ.get(self.api_key_env)
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigError(
                f"model address is {url!r}; expected a URL such as http://localhost:8000/v1 "
                "(base_url or OPENAI_BASE_URL)"
            )
        if not key:
            raise ConfigError(
                f"model {self.name!r} at {url} needs a key: set {self.api_key_env} "
                "(a local server without keys takes any value)"
            )
        if self.concurrency < 1:
            raise ConfigError(f"model concurrency is {self.concurrency}; expected at least 1")
        check_caps(self.name, self.ledger.caps, self.max_tokens, self.price)
        object.__setattr__(self, "base_url", url)
        object.__setattr__(self, "api_key", key)
        object.__setattr__(self, "_line", _Line(self))

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        if not prompts:
            return []
        return self._line.run(self._line.grouping.answer(prompts, draw))

    def close(self) -> None:
        self._line.close()

    @property
    def official(self) -> bool:
        return urlsplit(str(self.base_url)).hostname == urlsplit(OPENAI_URL).hostname

    def options(self) -> dict[str, Any]:
        """What a request says beside model, messages and n."""
        return sampling(self.temperature, self.max_tokens, self.extra, official=self.official)

    def identity(self) -> dict[str, object]:
        """What decides, beside the prompt, which reply a kept one may stand for."""
        return {"url": self.base_url, "model": self.name, "seed": self.seed, **self.options()}

    def most(self, messages: Sequence[Message], n: int) -> Spend:
        """The most that one request can cost."""
        return most_of(messages, n, self.max_tokens, self.price)

    async def served(self) -> list[dict[str, Any]]:
        """What the endpoint says of its models."""
        models = await self._line.client.models.list()
        return [model.model_dump() for model in models.data]

    def ask_served(self) -> list[dict[str, Any]]:
        """`served` from outside; raises ModelError where the endpoint does not say."""
        try:
            return self._line.run(self.served())
        # Any body at all may come back here.
        except (openai.OpenAIError, ValueError, AttributeError, TypeError) as error:
            raise ModelError(f"{self.name}: its list of models cannot be read") from error

    def ask_once(self, messages: Sequence[Message], n: int) -> list[Reply]:
        """One request, whatever number of replies it brings; nothing kept is used."""
        return self._line.run(self._line.ask(messages, n))

    def ask_route(
        self, path: str, bodies: Sequence[Mapping[str, object] | None]
    ) -> list[Answer | ModelError]:
        """What another route answers to each body (POST) or to None (GET), side by side; in the
        place of each that failed after its retries, why. Nothing is kept.
        """
        return self._line.run(self._line.routed(path, bodies))


class _Line:
    """The connection: one client on one event loop of its own, and the limit on requests."""

    def __init__(self, model: OpenAIModel) -> None:
        self.model = model
        self.grouping = Grouping(self.ask, model.store, model.identity())
        self._lock = threading.Lock()
        self._slots = asyncio.Semaphore(model.concurrency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: openai.AsyncOpenAI | None = None
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs to the end, also where another loop runs in this thread (a notebook)."""
        with self._lock:
            if self._closed:
                work.close()
                raise ModelError(f"{self._who}: closed before it was asked")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=self._loop.run_forever, name="model", daemon=True)
                thread.start()
            asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return asked.result()
        except CancelledError as error:
            raise ModelError(f"{self._who}: closed before it answered") from error

    def close(self) -> None:
        """Ends what is in flight: whoever waits for it would wait for ever, a process's end too;
        and asks nothing more, whose reply nobody would wait for.
        """
        with self._lock:
            self._closed, loop, self._loop = True, self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    async def _end(self) -> None:
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        # A loop that stops before they have ended tells nobody.
        await asyncio.gather(*waiting, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    @property
    def client(self) -> openai.AsyncOpenAI:
        if self._client is None:
            self._client = openai.AsyncOpenAI(
                base_url=self.model.base_url,
                api_key=self.model.api_key,
                timeout=self.model.timeout_s,
                max_retries=0,  # Ours are reserved one by one.
            )
        return self._client

    async def ask(self, messages: Sequence[Message], n: int) -> list[Reply]:
        """What one request returned: 1 to `n` replies, none where the server refuses n > 1."""
        async with self._slots:
            try:
                completion, seconds = await self._send(messages, n)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if n > 1:
                    return []
                raise await self._explained(error) from error
            except (openai.OpenAIError, TimeoutError, *NO_JSON) as error:
                raise await self._explained(error) from error
        try:
            return replies_of(completion, seconds, self.model.name, self.model.price)[:n]
        # The SDK checks no types: any JSON may be in there.
        except (AttributeError, TypeError, LookupError) as error:
            why = ""
            if (said := getattr(completion, "error", None)) is not None:  # As some proxies fail.
                why = f", it says: {self._shown(said)}"
            elif getattr(completion, "choices", None) == []:
                why = ", it holds no choices"
            raise ModelError(f"{self._who}: its answer is not a chat completion{why}") from error

    async def routed(
        self, path: str, bodies: Sequence[Mapping[str, object] | None]
    ) -> list[Answer | ModelError]:
        return await asyncio.gather(*(self._routed(path, body) for body in bodies))

    async def _routed(self, path: str, body: Mapping[str, object] | None) -> Answer | ModelError:
        async def send() -> Any:
            if body is None:
                return await self.client.get(path, cast_to=object)
            return await self.client.post(path, cast_to=object, body=dict(body))

        async with self._slots:
            try:
                return Answer(*await self._retried(send, Spend(requests=1)))
            except (openai.OpenAIError, TimeoutError) as error:
                return await self._explained(error)
            except NO_JSON:
                return ModelError(f"{self._who}: its answer to {path} is not the JSON it says")

    async def _send(self, messages: Sequence[Message], n: int) -> tuple[Any, float]:
        """The completion and the seconds its request took, after retries."""
        options = self.model.options() | ({"n": n} if n > 1 else {})

        async def send() -> Any:
            return await self.client.chat.completions.create(
                model=self.model.name, messages=list(messages), **options
            )

        return await self._retried(send, self.model.most(messages, n))

    async def _retried(self, send: Callable[[], Awaitable[Any]], most: Spend) -> tuple[Any, float]:
        """What `send` brings and the seconds that took; each try is reserved in the ledger."""
        failed: Exception | None = None
        for tries_left in range(self.model.retries, -1, -1):
            try:
                reserved = await self._reserved(most)
            except CapReached:
                if isinstance(failed, openai.APIConnectionError):
                    raise failed from None  # A higher cap would not help.
                raise
            start_s = time.monotonic()
            try:
                async with asyncio.timeout(self.model.timeout_s + GRACE_S):
                    answer = await send()
            except (openai.APIError, TimeoutError) as error:
                self._settle(reserved, _cost_of_failure(error, most))
                if not tries_left or not _passes(error):
                    raise
                failed = error
                await asyncio.sleep(_pause_s(error, self.model.retries - tries_left))
            except NO_JSON:
                self._settle(reserved, most)
                raise
            else:
                self._settle(reserved, cost_of(answer, self.model.price) or most)
                return answer, time.monotonic() - start_s
        raise AssertionError("the last try returns or raises")

    async def _reserved(self, most: Spend) -> Reservation:
        # Polled, not waited for in threads: the client resolves names in the same few threads.
        while (reserved := self.model.ledger.try_reserve(most)) is None:
            await asyncio.sleep(RESERVE_POLL_S)
        return reserved

    def _settle(self, reserved: Reservation, cost: Spend) -> None:
        self.model.ledger.settle(reserved, cost)

    @property
    def _who(self) -> str:
        return f"model {self.model.name!r} at {self.model.base_url}"

    def _shown(self, said: object) -> str:
        """A server's words on one line, without the key."""
        text = " ".join(str(said).split())
        if len(key := str(self.model.api_key)) >= SECRET_CHARACTERS:
            text = text.replace(key, "<key>")
        return text[:SHOWN_CHARACTERS]

    async def _explained(self, error: Exception) -> ModelError:
        """One line: what failed, and what to do about it."""
        tries = f"after {self.model.retries + 1} tries"
        said = self._shown(error)
        match error:
            case openai.APITimeoutError() | TimeoutError():
                why = f"no reply within {self.model.timeout_s:g} s, {tries}; raise the time-out?"
            case openai.APIConnectionError():
                cause = error.__cause__ or error
                why = REACHED.get(type(cause).__name__) or (
                    f"cannot be reached ({cause}); is it running, is that address right?"
                )
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                variable = self.model.api_key_env
                why = f"the key was refused ({error.status_code}); check {variable}"
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
        kind = Unavailable if _stays(error) else ModelError
        return kind(f"{self._who}: {why}")

    async def _served(self) -> str:
        try:
            names = [str(model["id"]) for model in await self.model.served()]
        except (openai.OpenAIError, ValueError, AttributeError, TypeError, KeyError):
            # Any body at all may come back here, and the 404 above is the error to report.
            return "check the model's name and OPENAI_BASE_URL"
        return "it serves: " + (", ".join(names) or "nothing")


def _passes(error: openai.APIError | TimeoutError) -> bool:
    """Whether trying again may help."""
    # The HTTP library's own time-outs are of the first type too.
    if isinstance(error, openai.APIConnectionError | TimeoutError):
        return True
    if not isinstance(error, openai.APIStatusError) or error.code == "insufficient_quota":
        return False
    return error.status_code >= 500 or error.status_code in RETRIED


def _stays(error: Exception) -> bool:
    """Whether the next request, whatever it asks, would fail likewise: unlike where this one was
    refused or took too long, or there were too many.
    """
    if isinstance(error, openai.APITimeoutError):
        return type(error.__cause__).__name__ in UNSENT
    if isinstance(error, openai.InternalServerError):
        return error.status_code in DOWN
    spent = isinstance(error, openai.RateLimitError) and error.code == "insufficient_quota"
    return spent or isinstance(error, LASTING)


def _cost_of_failure(error: openai.APIError | TimeoutError, most: Spend) -> Spend:
    """A refusal costs no tokens; where the answer was lost or is garbled it may have cost all."""
    refused = isinstance(error, openai.APIStatusError)
    if refused or type(error.__cause__).__name__ in UNSENT:
        return Spend(requests=1)
    return most


def _pause_s(error: openai.APIError | TimeoutError, retry: int) -> float:
    """As long as the server asks for, else doubling; a quarter is chance, against stampedes."""
    if isinstance(error, openai.APIStatusError):
        asked = str(error.response.headers.get("retry-after", ""))
        if asked.replace(".", "", 1).isdecimal():  # isdigit takes "²", which float does not
            return min(float(asked), LONGEST_WAIT_S)
    first, longest = BACKOFF_S
    return float(min(first * 2**retry, longest)) * random.uniform(0.75, 1.0)


def parse_completion(body: Mapping[str, Any], model: str, price: Price | None) -> list[Reply]:
    """Replies of a chat completion in a batch file; raises ModelError for another shape."""
    try:
        completion = openai.types.chat.ChatCompletion.construct(**body)
        return replies_of(completion, 0.0, model, price)
    except (AttributeError, TypeError, LookupError) as error:
        raise ModelError(f"{model}: an answer is not a chat completion") from error
