"""A proposal is a candidate with its provenance; judged and rewarded it is an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rewards.types import Reward
from sandbox.types import Candidate, Evaluation, Task


@dataclass(frozen=True)
class Usage:
    """What a proposal cost to make."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Proposal:
    candidate: Candidate
    proposer: str
    """Model name, or `features` for the built-in proposer (reported as `no model`)."""
    strategy: str = ""
    parents: tuple[str, ...] = ()
    """Candidate ids this one was made from."""
    features: Mapping[str, str | int] = field(default_factory=dict)
    prompt: str | None = None
    reply: str | None = None
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True)
class Attempt:
    """One journal row."""

    proposal: Proposal
    evaluation: Evaluation
    reward: Reward


class Proposer(Protocol):
    name: str

    def unsupported(self, task: Task) -> str | None:
        """None if this proposer can work on the task, else one line that says why not."""
        ...

    def propose(self, task: Task, history: Sequence[Attempt], n: int) -> Sequence[Proposal]:
        """Up to `n` new proposals given every attempt so far on this task; none when it has no
        more.

        Depends on nothing but its arguments (and a seed), so that a resumed campaign goes on alike.
        """
        ...
