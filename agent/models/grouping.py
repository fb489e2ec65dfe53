"""Replies to several prompts: kept ones for nothing, those to equal prompts by one request.

Every reply is in the store before it is used. How a request is sent is not known here
(agent/models/endpoint.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from agent.model import CapReached, ModelError, Reply
from agent.models.store import ReplyStore, request_keys
from agent.prompts.message import Message

log = logging.getLogger(__name__)

Ask = Callable[[Sequence[Message], int], Awaitable[list[Reply]]]
"""What one request returns: 1 to so many replies, none where the server refuses more than one.
Raises ModelError."""


class Grouping:
    """Of the prompts to one model at one endpoint; used on one event loop."""

    def __init__(self, ask: Ask, store: ReplyStore | None, identity: Mapping[str, object]) -> None:
        """`identity`: what decides, beside the prompt, which reply a kept one may stand for."""
        self._ask, self._store, self._identity = ask, store, identity
        self._refuses_n = False

    async def answer(self, prompts: Sequence[Sequence[Message]], draw: str) -> list[Reply | None]:
        """One reply to each prompt, None where that failed; raises the first error if all did."""
        keys = request_keys(prompts, draw, self._identity)
        replies = {i: self._kept(key) for i, key in enumerate(keys)}
        groups: dict[str, list[int]] = {}
        for i, messages in enumerate(prompts):
            if replies[i] is None:
                groups.setdefault(str(messages), []).append(i)
        asked = [self._group(prompts[places[0]], places, keys) for places in groups.values()]
        errors: list[ModelError] = []
        for found, failed in await asyncio.gather(*asked):
            replies |= found
            errors += failed
        if errors and not any(replies.values()):
            raise errors[0]
        for error in errors:
            log.warning("one reply is missing: %s", error)
        return [replies[i] for i in range(len(prompts))]

    async def _group(
        self, messages: Sequence[Message], places: Sequence[int], keys: Sequence[str]
    ) -> tuple[dict[int, Reply | None], list[ModelError]]:
        """Replies to equal prompts, by one request where the server can, else by one each."""
        found: dict[int, Reply | None] = {}
        if len(places) > 1 and not self._refuses_n:
            try:
                replies = await self._ask(messages, len(places))
            except CapReached:
                replies = []  # Fewer may fit.
            except ModelError as error:
                return {}, [error] * len(places)
            else:
                self._refuses_n = self._refuses_n or not replies
            found = dict(zip(places, replies, strict=False))
            for place, reply in zip(places, replies, strict=False):
                self._keep(keys[place], reply)
        rest = places[len(found) :]
        outcomes = await asyncio.gather(*(self._one(messages, keys[place]) for place in rest))
        errors = [outcome for outcome in outcomes if isinstance(outcome, ModelError)]
        singles = zip(rest, outcomes, strict=True)
        found |= {p: reply for p, reply in singles if isinstance(reply, Reply)}
        return found, errors

    async def _one(self, messages: Sequence[Message], key: str) -> Reply | ModelError:
        try:
            [reply, *_] = await self._ask(messages, 1)
            self._keep(key, reply)
        except ModelError as error:
            return error
        return reply

    def _kept(self, key: str) -> Reply | None:
        return None if self._store is None else self._store.get(key)

    def _keep(self, key: str, reply: Reply) -> None:
        if self._store is not None:
            self._store.put(key, reply)
