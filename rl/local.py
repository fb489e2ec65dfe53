"""A policy as a campaign's model (agent.model.Model): batched, in this process, version by version.

The tokens of every reply are kept beside the run: a reply's text can be cut into tokens in several
ways, and the gradient must be that of the tokens that were sampled.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from agent.model import ModelError, Reply, answered
from agent.prompts.message import Message
from rl.config import SamplingConfig
from rl.policy import Policy
from sandbox.types import digest


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


class LocalModel:
    """One sampling at a time; equal prompts, draws, seeds and weights give equal replies."""

    def __init__(
        self,
        policy: Policy,
        sampling: SamplingConfig,
        seed: int = 0,
        tokens: TokenStore | None = None,
    ) -> None:
        self.policy, self.sampling, self.seed = policy, sampling, seed
        self.tokens = tokens or TokenStore()
        self._busy = threading.Lock()

    @property
    def name(self) -> str:
        return self.policy.name

    def complete(self, messages: Sequence[Message], n: int, draw: str = "") -> list[Reply]:
        return answered(self.complete_each([messages] * n, draw))

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        """None where a prompt is as long as the context; ModelError where all are."""
        with self._busy:
            policy = self.policy
            version = policy.version
            ids = [policy.prompt_ids(messages) for messages in prompts]
            seed = int(digest([self.seed, version, draw]), 16) % (1 << 63)
            samples = policy.sample(ids, self.sampling, seed)
            if prompts and not any(samples):
                longest = max(map(len, ids))
                raise ModelError(
                    f"{policy.name}: a prompt of {longest} tokens leaves no room in a context of "
                    f"{policy.context}"
                )
            replies: list[Reply | None] = []
            for messages, sample in zip(prompts, samples, strict=True):
                if sample is None:
                    replies.append(None)
                    continue
                prompt = json.dumps(list(messages), ensure_ascii=False)
                self.tokens.put(version, prompt, sample.text, sample.ids)
                replies.append(
                    Reply(
                        sample.text,
                        prompt_tokens=sample.prompt_tokens,
                        completion_tokens=len(sample.ids),
                        finish_reason="stop" if sample.finished else "length",
                        seconds=sample.seconds,
                        model=f"{policy.name}@{version}",
                        policy_version=version,
                    )
                )
            return replies
