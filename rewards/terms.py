"""Rewards for training: correctness first, then speed, as named terms with weights.

- `milestones`: hack -1, wrong 0, correct 1, faster than eager +1, faster than B* (the fastest
  baseline) +1. Levels against the better baseline beat raw speedup in direct ablation (CUDA Agent:
  geometric mean 2.11x against 1.25x): they cannot be raised by one lucky figure.
- `log`: correct 1, plus the clipped log of the interval's *lower bound* (rewards/speedup.py).
- `cuda-l1`: the robust speedup itself (rewards/robust.py; arXiv 2507.14111), 0 for a failure.
- partial credit: a share of `partial` for the cases a wrong kernel passes (at most 0.3, as Dr.
  Kernel's gate: a wrong kernel must never come near a correct one).
- format: the share of the mandatory sections the reply has, in order (CUDA-L1's prompt demands
  them; whether it pays for them is not published, so the weight is 0 unless set).
- coverage: the share of a right kernel's time that is spent in kernels of its own, by a profiler in
  its process (so it can be forged; weight 0 unless set). Dr. Kernel pays for it (arXiv 2602.05885),
  against replies that leave the work to the library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from rewards.robust import Robust, robust_speedup
from rewards.speedup import FASTEST, SLOWEST
from rewards.types import Reward, Term
from sandbox.types import Evaluation, Status, digest

SECTIONS = ("## Performance Analysis", "## Algorithm Design", "## Code Implementation")
"""Of a contrastive reply, in this order (agent/prompts/contrast.j2)."""


@dataclass(frozen=True)
class RewardConfig:
    """A reward function as data; equal `name` means comparable rewards."""

    kind: Literal["milestones", "log", "cuda-l1"] = "milestones"
    hack: float = -1.0
    wrong: float = 0.0
    correct: float = 1.0
    beats_eager: float = 1.0
    """Added where the whole interval lies above `margin` times eager."""
    beats_best: float = 1.0
    """Added where it lies above `margin` times every baseline that was measured as well."""
    margin: float = 1.0
    partial: float = 0.0
    """A wrong kernel's credit, times the share of cases it passed."""
    format_weight: float = 0.0
    coverage_weight: float = 0.0
    """Of the own share of a right kernel's time, which `profile_searches` of the protocol finds."""
    robust: Robust = field(default_factory=Robust)
    """Of `cuda-l1`."""

    def __post_init__(self) -> None:
        if not self.hack < self.wrong < self.correct:
            raise ValueError(
                f"levels are hack {self.hack}, wrong {self.wrong}, correct {self.correct}; "
                "expected them to rise"
            )
        if not 0 <= self.partial <= 0.3:
            raise ValueError(f"partial is {self.partial}; expected 0..0.3")
        weights = (self.beats_eager, self.beats_best, self.format_weight, self.coverage_weight)
        if min(weights) < 0:
            raise ValueError("expected bonuses and weights of at least 0")
        if self.margin < 1:
            raise ValueError(f"margin is {self.margin}; expected at least 1")
        if self.kind == "cuda-l1" and self.partial + self.format_weight + self.coverage_weight:
            raise ValueError("cuda-l1 pays for speed alone; expected no partial, format, coverage")
        slowest = {
            "milestones": self.correct,
            "log": self.correct + SLOWEST,
            "cuda-l1": 10.0**-self.robust.decimals,
        }[self.kind]
        if self.wrong + self.partial + self.format_weight >= slowest:
            raise ValueError("a wrong kernel could earn as much as a correct one; lower its credit")

    @property
    def name(self) -> str:
        """Stored beside every reward, so that rewards of different functions never mix."""
        return f"{self.kind} {digest(vars(self))}"


def score(evaluation: Evaluation, config: RewardConfig, reply: str | None = None) -> Reward:
    """The reward of one rollout; no value where the fault is ours, the timing is too uneven, or a
    share that is paid for is not known.
    """
    if not evaluation.status.scored:
        return Reward(None)
    if evaluation.status is Status.REWARD_HACK:
        # No further terms: nothing may be earned back.
        return _sum([Term("hack", 1.0, config.hack)])
    if evaluation.passed:
        terms = _speed_terms(evaluation, config)
        if terms is None:
            return Reward(None)
        if config.coverage_weight:
            if evaluation.own_share is None:
                return Reward(None)  # a profiler's failure is not told from a missing profile
            terms.append(Term("coverage", config.coverage_weight, evaluation.own_share))
    else:
        terms = [Term("wrong", 1.0, config.wrong)]
        if config.partial and evaluation.cases:
            share = sum(case.passed for case in evaluation.cases) / len(evaluation.cases)
            terms.append(Term("partial", config.partial, share))
    if config.format_weight and reply is not None:
        terms.append(Term("format", config.format_weight, format_share(reply)))
    return _sum(terms)


def _speed_terms(evaluation: Evaluation, config: RewardConfig) -> list[Term] | None:
    """None where the figure is to be discarded."""
    speedup = evaluation.speedup
    if config.kind == "cuda-l1":
        if evaluation.timing is None:
            return [Term("speedup", 1.0, config.wrong)]
        robust = robust_speedup(evaluation.timing, config.robust)
        return None if robust is None else [Term("speedup", 1.0, robust)]
    terms = [Term("correct", 1.0, config.correct)]
    if speedup is None:
        return terms
    if config.kind == "log":
        low = min(max(math.log(speedup.low), SLOWEST), FASTEST)
        return [*terms, Term("log_speedup_low", 1.0, low)]
    eager = speedup.low > config.margin
    known = [b.speedup for b in evaluation.baselines if b.speedup is not None]
    # Without a measured baseline B* is not known, and nothing is earned for it.
    best = eager and known and all(speedup.divided_by(b).low > config.margin for b in known)
    return [
        *terms,
        Term("beats_eager", config.beats_eager, float(eager)),
        Term("beats_best", config.beats_best, float(bool(best))),
    ]


def format_share(reply: str) -> float:
    """Share of the mandatory sections that are there and in order."""
    place, found = 0, 0
    for section in SECTIONS:
        at = reply.find(section, place)
        if at >= 0:
            place, found = at + len(section), found + 1
    return found / len(SECTIONS)


def _sum(terms: list[Term]) -> Reward:
    return Reward(sum(t.weight * t.value for t in terms), tuple(terms))
