"""A policy as a campaign's model (agent.model.Model): batched, version by version, sampled in this
process or by a server.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from agent.model import ModelError, Reply
from agent.prompts.message import Message
from rl.config import SamplingConfig
from rl.policy import Policy, Sample
from rl.written import TokenStore, Written
from sandbox.machine.cores import common_cores
from sandbox.types import digest

T = TypeVar("T")
GATHER_S = 0.05
"""In which somebody else asks, where a campaign asks for all its tasks at once."""


NOTHING = Sample([], "", finished=False, prompt_tokens=0, seconds=0.0)
"""Of a policy that is judged, where its context has no room."""


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
    """One sampling at a time, for all who ask meanwhile; no request waits for another's reply.
    Equal prompts, draws, seeds and weights give equal replies, as far as a batch's sums do not
    depend on what else is in it.
    """

    began_s: float | None = None
    """When it first sampled (time.monotonic)."""
    busy_s = 0.0
    """Seconds that it has sampled for."""

    def __init__(
        self,
        policy: Policy,
        sampling: SamplingConfig,
        seed: int = 0,
        tokens: TokenStore | None = None,
        sampler: Sampler | None = None,
        replicas: int = 1,
    ) -> None:
        """`sampler`: who samples in the policy's place, in so many `replicas` side by side."""
        self.policy, self.sampling, self.seed = policy, sampling, seed
        self.sampler: Sampler = sampler or policy
        self._at_once = replicas * sampling.batch
        self.tokens = tokens or TokenStore()
        self._waiting: deque[_Asked] = deque()
        self._thread = ThreadPoolExecutor(1, "sampler", initializer=self._keep_off)

    def _keep_off(self) -> None:
        """Off the cores that launch what lanes measure meanwhile."""
        if torch.cuda.is_initialized():
            os.sched_setaffinity(0, common_cores())

    @property
    def name(self) -> str:
        return self.policy.label

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        """None where a prompt is as long as the context, and ModelError where all are; of a policy
        that is judged, an empty reply, which is wrong.
        """
        mine = _Asked(prompts, draw)
        self._waiting.append(mine)
        self._thread.submit(self._answer_all)
        replies = mine.answer.result()
        if prompts and not any(replies):
            context = self.sampler.context
            raise ModelError(f"{self.name}: no prompt leaves room in a context of {context} tokens")
        return replies

    def between(self, part: Callable[[], T]) -> T:
        """Does it in the thread that samples: after what is being sampled, before what is asked
        from now on.
        """
        return self._thread.submit(part).result()

    def _answer_all(self) -> None:
        asked = self._gathered()
        start = time.monotonic()
        self.began_s = self.began_s or start
        try:
            self._answer(asked)
        finally:
            self.busy_s += time.monotonic() - start
            for each in asked:
                if not each.answer.done():
                    each.answer.set_exception(sys.exception())

    def _gathered(self) -> list[_Asked]:
        """All that wait, once nobody else comes: a batch takes no longer than a reply."""
        seen = 0
        while len(self._waiting) > seen:
            seen = len(self._waiting)
            time.sleep(GATHER_S)
        return [self._waiting.popleft() for _ in range(seen)]

    def _answer(self, asked: Sequence[_Asked]) -> None:
        """Batch by batch, each request as soon as it has its last reply: what comes of the first
        is judged while the others are sampled.
        """
        policy = self.policy
        rows = [(each, place) for each in asked for place in range(len(each.prompts))]
        ids = [policy.prompt_ids(each.prompts[place]) for each, place in rows]
        seeds = [
            int(digest([self.seed, policy.version, each.draw, place]), 16) % (1 << 63)
            for each, place in rows
        ]
        # As a policy orders them, so that a batch is the same: little of it is padding.
        order = sorted(range(len(rows)), key=lambda i: len(ids[i]))
        replies: dict[int, list[Reply | None]] = {id(e): [None] * len(e.prompts) for e in asked}
        left = {id(each): len(each.prompts) for each in asked}
        self._hand_over(asked, left, replies)
        for first in range(0, len(order), self._at_once):
            chosen = order[first : first + self._at_once]
            found = self.sampler.sample(
                [ids[i] for i in chosen], self.sampling, [seeds[i] for i in chosen]
            )
            for i, sample in zip(chosen, found, strict=True):
                each, place = rows[i]
                if self.sampling.greedy and len(ids[i]) + 1 >= self.sampler.context:
                    sample = NOTHING
                replies[id(each)][place] = self._reply(each.prompts[place], sample)
                left[id(each)] -= 1
            self._hand_over(asked, left, replies)

    def _hand_over(
        self,
        asked: Sequence[_Asked],
        left: Mapping[int, int],
        replies: Mapping[int, list[Reply | None]],
    ) -> None:
        """To those of whom none is left."""
        for each in asked:
            if not left[id(each)] and not each.answer.done():
                each.answer.set_result(replies[id(each)])

    def _reply(self, messages: Sequence[Message], sample: Sample | None) -> Reply | None:
        if sample is None:
            return None
        version = self.policy.version
        prompt = json.dumps(list(messages), ensure_ascii=False)
        self.tokens.put(version, prompt, sample.text, Written(sample.ids, sample.log_probabilities))
        return Reply(
            sample.text,
            prompt_tokens=sample.prompt_tokens,
            completion_tokens=len(sample.ids),
            finish_reason="stop" if sample.finished else "length",
            seconds=sample.seconds,
            model=f"{self.policy.label}@{version}",
            policy_version=version,
        )
