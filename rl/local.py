"""A policy as a campaign's model (agent.model.Model): batched, version by version, sampled in this
process or by a server.

The tokens of every reply are kept beside the run: a reply's text can be cut into tokens in several
ways, and the gradient must be that of the tokens that were sampled.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.model import ModelError, Reply, answered
from agent.prompts.message import Message
from rl.config import SamplingConfig
from rl.policy import Policy, Sample
from sandbox.types import digest

GATHER_S = 0.05
"""In which somebody else asks, where a campaign asks for all its tasks at once."""


class TokenStore:
    """Append-only: which tokens a version's reply to a prompt was made of."""

    def __init__(self, path: Path | None = None) -> None:
        """In memory alone without a path."""
        self.path = path
        self._tokens: dict[str, list[int]] = {}
        if path is not None and path.is_file():
            for line in path.read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # The last line of a process that was killed.
                self._tokens[record["key"]] = record["ids"]

    def put(self, version: int, prompt: str, reply: str, ids: list[int]) -> None:
        key = digest([version, prompt, reply])
        if key in self._tokens:
            return
        self._tokens[key] = ids
        if self.path is not None:
            with self.path.open("a") as stream:
                stream.write(json.dumps({"key": key, "ids": ids}) + "\n")

    def get(self, version: int, prompt: str, reply: str) -> list[int] | None:
        return self._tokens.get(digest([version, prompt, reply]))


class Sampler(Protocol):
    """A policy, those who hold its weights together, or a server that has them."""

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Sample | None]: ...


@dataclass(eq=False)
class _Asked:
    """One request; its answer is None in every place where there was no room for one."""

    prompts: Sequence[Sequence[Message]]
    draw: str
    answer: Future[list[Reply | None]] = field(default_factory=Future)


class LocalModel:
    """One sampling at a time, for all who ask meanwhile. Equal prompts, draws, seeds and weights
    give equal replies, as far as a batch's sums do not depend on what else is in it.
    """

    def __init__(
        self,
        policy: Policy,
        sampling: SamplingConfig,
        seed: int = 0,
        tokens: TokenStore | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        """`sampler`: who samples in the policy's place."""
        self.policy, self.sampling, self.seed = policy, sampling, seed
        self._sampler: Sampler = sampler or policy
        self.tokens = tokens or TokenStore()
        self._busy = threading.Lock()
        self._waiting: deque[_Asked] = deque()

    @property
    def name(self) -> str:
        return self.policy.name

    def complete(self, messages: Sequence[Message], n: int, draw: str = "") -> list[Reply]:
        return answered(self.complete_each([messages] * n, draw))

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        """None where a prompt is as long as the context; ModelError where all are."""
        mine = _Asked(prompts, draw)
        self._waiting.append(mine)
        with self._busy:
            if not mine.answer.done():
                self._answer(self._gathered())
        replies = mine.answer.result()
        if prompts and not any(replies):
            context = self._sampler.context
            raise ModelError(f"{self.name}: no prompt leaves room in a context of {context} tokens")
        return replies

    def _gathered(self) -> list[_Asked]:
        """All that wait, once nobody else comes: a batch takes no longer than a reply."""
        seen = 0
        while len(self._waiting) > seen:
            seen = len(self._waiting)
            time.sleep(GATHER_S)
        return [self._waiting.popleft() for _ in range(seen)]

    def _answer(self, asked: Sequence[_Asked]) -> None:
        policy = self.policy
        rows = [(each, place) for each in asked for place in range(len(each.prompts))]
        try:
            ids = [policy.prompt_ids(each.prompts[place]) for each, place in rows]
            seeds = [
                int(digest([self.seed, policy.version, each.draw, place]), 16) % (1 << 63)
                for each, place in rows
            ]
            samples = iter(self._sampler.sample(ids, self.sampling, seeds))
            for each in asked:
                replies = [self._reply(messages, next(samples)) for messages in each.prompts]
                each.answer.set_result(replies)
        except Exception as error:
            for each in asked:
                if not each.answer.done():
                    each.answer.set_exception(error)
            raise

    def _reply(self, messages: Sequence[Message], sample: Sample | None) -> Reply | None:
        if sample is None:
            return None
        version = self.policy.version
        prompt = json.dumps(list(messages), ensure_ascii=False)
        self.tokens.put(version, prompt, sample.text, sample.ids)
        return Reply(
            sample.text,
            prompt_tokens=sample.prompt_tokens,
            completion_tokens=len(sample.ids),
            finish_reason="stop" if sample.finished else "length",
            seconds=sample.seconds,
            model=f"{self.policy.name}@{version}",
            policy_version=version,
        )
