"""A proposal is a candidate with its provenance; judged and rewarded it is an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rewards.types import Reward
from sandbox.figures import Baseline
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


@dataclass(frozen=True)
class Measured:
    """What was measured before any candidate: the task's baselines and what the device can do."""

    eager_ms: float | None = None
    baselines_ms: Mapping[str, float] = field(default_factory=dict)
    floor_ms: float | None = None
    """Compulsory bytes over measured bandwidth, where that binds."""
    copy_bytes_s: float | None = None
    matmul_flops: Mapping[str, float] = field(default_factory=dict)
    launch_s: float | None = None
    cache_bytes: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of preparing, by stage."""
    timed: tuple[Baseline, ...] = ()
    """The baselines with intervals, and those that failed."""
    estimate_ms: float | None = None
    """Of eager, from the calls that made the cases."""


@dataclass(frozen=True)
class Turn:
    """What is proposed for, beside the attempts so far."""

    round: int = 0
    """Of the task, from 0: the same prompt in another round is another question."""
    measured: Measured | None = None
    repeats: Sequence[Proposal] = ()
    """Earlier proposals of known candidates: paid for, and not among the attempts."""


FIRST_TURN = Turn()


class Proposer(Protocol):
    name: str
    wants_measured: bool
    """Its first round waits until the task is prepared, so that `Turn.measured` is there."""

    def unsupported(self, task: Task) -> str | None:
        """None if this proposer can work on the task, else one line that says why not."""
        ...

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        """Up to `n` new proposals given every attempt so far on this task; none when it has no
        more.

        Depends on nothing but its arguments (and a seed), so that a resumed campaign goes on alike.
        """
        ...
