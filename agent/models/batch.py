"""Files in place of a server: requests go out as OpenAI batch lines, replies come back as lines.

Generation and evaluation may so live on different machines, one without a network; the same lines
go to a provider's batch endpoint or to `vllm run-batch`. A request's `custom_id` is the hash of
what it asks, so the order of the lines is free and a line may be imported twice. What was exported
and is not among the imported lines is left out of its round; where that leaves nothing of the round
agent/loop/rounds.py exports it again.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.model import (
    AwaitingReplies,
    CapReached,
    ModelError,
    RepliesMissing,
    Reply,
)
from agent.models.completions import most_of, sampling
from agent.models.ledger import Ledger, Spend
from agent.models.prices import Price
from agent.models.settings import ModelConfig
from agent.models.store import KEY_CHARACTERS, ReplyStore, request_keys
from agent.prompts.message import Message
from sandbox.errors import ConfigError, unread
from sandbox.words import number_of

ENDPOINT = "/v1/chat/completions"


@dataclass
class Outbox:
    """Requests that wait for a file, and those that an import left without an answer."""

    lines: dict[str, str] = field(default_factory=dict)
    unanswered: frozenset[str] = frozenset()
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, key: str, line: str) -> None:
        with self._lock:
            self.lines.setdefault(key, line)

    def write(self, path: Path) -> int:
        """Write the file whole or not at all; returns its number of lines."""
        path = path.resolve()  # A link stays one.
        partial = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            text = "".join(f"{line}\n" for line in self.lines.values())
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
        return len(self.lines)


@dataclass(frozen=True)
class BatchModel:
    """Answers from kept replies; what it cannot answer is put into the outbox."""

    settings: ModelConfig
    store: ReplyStore
    ledger: Ledger
    outbox: Outbox
    price: Price | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        return self.settings.name

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        """Raises AwaitingReplies where a request was not exported before; one that the caps have no
        room for is left without an answer, and CapReached is raised where all are.
        """
        keys = request_keys(prompts, draw, self._identity())
        replies = [self._kept(key) for key in keys]
        absent = [i for i, reply in enumerate(replies) if reply is None]
        waiting = [i for i in absent if keys[i] not in self.outbox.unanswered]
        exported, full = self._export_all((keys[i], prompts[i]) for i in waiting)
        if exported:
            raise AwaitingReplies(exported)
        if full is not None and len(absent) == len(prompts):
            raise full
        if absent and len(absent) == len(prompts):
            said = f"{self.name}: none of {len(absent)} exported requests was answered"
            # What failed is settled: the ledger waits for it no longer.
            if any(self.ledger.is_waiting(key) for key in keys):
                again = list(zip(keys, prompts, strict=True))
                raise RepliesMissing(said, lambda: self._export_all(again)[0])
            raise ModelError(said)
        return replies

    def _export_all(
        self, requests: Iterable[tuple[str, Sequence[Message]]]
    ) -> tuple[int, CapReached | None]:
        """How many went out, and the cap that kept others back."""
        exported, full = 0, None
        for key, messages in requests:
            try:
                self._export(key, messages)
                exported += 1
            except CapReached as error:
                full = error
        return exported, full

    def _kept(self, key: str) -> Reply | None:
        reply = self.store.get(key)
        if reply is None:
            return None
        tokens = reply.prompt_tokens + reply.completion_tokens
        cost = None
        if self.price is not None:
            cost = self.price.cost_usd(reply.prompt_tokens, reply.completion_tokens)
        self.ledger.settle_id(key, Spend(1, tokens, cost or 0.0) if tokens else None)
        return replace(reply, model=self.name, cost_usd=cost)

    def _export(self, key: str, messages: Sequence[Message]) -> None:
        if not self.ledger.is_waiting(key):
            most = most_of(messages, 1, self.settings.max_tokens, self.price)
            self.ledger.await_answer(self.ledger.reserve(most, key))
        body = {"model": self.name, "messages": list(messages), **self._options()}
        line = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": body}
        self.outbox.add(key, json.dumps(line, ensure_ascii=False))

    def _options(self) -> dict[str, Any]:
        found = sampling(self.settings.temperature, self.settings.max_tokens, {}, official=False)
        return found | dict(self.settings.extra)

    def _identity(self) -> dict[str, object]:
        return {"url": "batch", "model": self.name, "seed": self.seed, **self._options()}


@dataclass(frozen=True)
class Imported:
    """What became of the lines of imported files."""

    replies: int = 0
    failed: int = 0
    """Lines that say their request failed."""
    malformed: int = 0
    missing: int = 0
    """Exported, and in no line."""
    unknown: int = 0
    """Replies to what this run has never asked, and failures of it."""

    def __str__(self) -> str:
        parts = [f"{number_of(self.replies, 'reply')} imported"]
        for name in ("failed", "malformed", "missing"):
            if count := getattr(self, name):
                parts.append(f"{count} {name}")
        if self.unknown:
            parts.append(f"{self.unknown} not asked for")
        return ", ".join(parts)


def import_replies(
    files: Sequence[Path], store: ReplyStore, ledger: Ledger
) -> tuple[Imported, frozenset[str]]:
    """Keep the replies in these files, in any order; also the ids left without an answer.

    Raises ConfigError where a file cannot be read or none of them holds a line of a batch.
    """
    # What a killed process had in flight waits too, under ids of another form.
    exported = {id for id in ledger.waiting() if len(id) == KEY_CHARACTERS}
    replies: dict[str, Reply] = {}
    failed: set[str] = set()
    malformed = requests = 0
    for file in files:
        for line in _lines(file):
            try:
                key, reply = _parsed(line)
            except Unanswered:
                requests += 1
                continue
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                malformed += 1
                continue
            if reply is None:
                failed.add(key)
            else:
                replies.setdefault(key, reply)
    if not replies and not failed:
        names = ", ".join(str(file) for file in files)
        if requests:
            raise ConfigError(
                f"{names}: holds requests, not their replies; expected lines with custom_id and "
                "response, as a batch returns them"
            )
        raise ConfigError(
            f"{names}: no line of a batch's output; expected JSON lines with custom_id and response"
        )
    malformed += requests
    failed -= replies.keys()
    asked = {id for id in ledger.reserved() if len(id) == KEY_CHARACTERS}
    unknown = len(failed - asked)
    failed &= asked
    for key, reply in replies.items():
        if key in exported:
            store.put(key, reply)
        elif store.get(key) is None and key in asked:  # Imported as failed, and answered later.
            store.put(key, reply)
            ledger.reopen(key, Spend(1, reply.prompt_tokens + reply.completion_tokens))
        elif store.get(key) is None:
            unknown += 1
    for key in failed:
        ledger.settle_id(key, Spend(requests=1))
    unanswered = exported - replies.keys()
    known = sum(store.get(key) is not None for key in replies)
    count = Imported(known, len(failed), malformed, len(unanswered - failed), unknown)
    return count, frozenset(unanswered)


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8-sig")  # Some editors begin a file so.
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({unread(error)})") from error
    # Not splitlines: a reply may hold U+2028 and its like, which JSON need not escape.
    return [line for line in text.split("\n") if line.strip()]


class Unanswered(Exception):
    """A line is a request, as it was exported."""


def _parsed(line: str) -> tuple[str, Reply | None]:
    """The id, and its reply or None where the line says the request failed; raises ValueError,
    KeyError, TypeError or AttributeError for anything that is no line of a batch's output, and
    Unanswered for one of its input.
    """
    from agent.models.endpoint import parse_completion

    record = json.loads(line)
    key = record["custom_id"]
    if not isinstance(key, str):
        raise TypeError("custom_id is no string")
    if "body" in record and "response" not in record:
        raise Unanswered
    response = record.get("response")
    if record.get("error") is not None or response is None:
        return key, None
    if response.get("status_code", 200) != 200:
        return key, None
    try:
        return key, parse_completion(response["body"], "", None)[0]
    except ModelError:
        return key, None
