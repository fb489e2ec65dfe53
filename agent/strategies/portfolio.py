"""A portfolio: each question goes to the strategy and the model that gain most for their cost.

A bandit whose arms are strategies times models. The index is fractional KUBE's (Tran-Thanh et al.,
"Knapsack based optimal policies for budget-limited multi-armed bandits", AAAI 2012, algorithm 2):
(mean gain + c sqrt(2 ln t / n)) / cost, with the observed mean cost in the place of a known one,
and c (there 1) a setting, since gains lie far below 1. A gain is what an attempt added to the
task's best log-speedup before its round. Costs are money where every answer had a price, else
tokens, else one each. An answer that was a known program costs and gains nothing. An arm sees its
own attempts and every correct one: it repairs its own failures only, and all of them breed from one
population. Across tasks, agent/loop/allocation.py decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Discriminator

from agent.loop.allocation import Allocation
from agent.prompts.render import Scene
from agent.strategies.best_of_n import BestOfN
from agent.strategies.contrastive import Contrastive
from agent.strategies.evolve import Evolve
from agent.strategies.fsr import Fsr
from agent.strategies.islands import GENERATION
from agent.strategies.lineage import log_speedup
from agent.strategies.types import ARM, Ask
from agent.types import Attempt, Proposal

FIRST_CORRECT = 0.3
"""In log-speedup: what a task's first correct candidate is worth beside its speed."""
LARGE_GAIN = math.log(2)
"""In log-speedup: a gain that counts as 1; what is beyond it counts no more."""
ENDLESS = 10**6
AnyArm = BestOfN | Fsr | Contrastive | Evolve


@dataclass(frozen=True)
class Arm:
    strategy: AnyArm
    model: str | None

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.strategy.kind, self.model)))


@dataclass
class Score:
    """What an arm has brought; `pulls` counts questions of this round too."""

    pulls: int = 0
    answered: int = 0
    gain: float = 0.0
    cost: float = 0.0

    def index(self, total: int, exploration: float, usual_cost: float) -> float:
        if self.answered == 0:
            return math.inf if self.pulls == 0 else 0.0
        spread = math.sqrt(2 * math.log(max(total, 2)) / self.pulls)
        cost = self.cost / self.answered or usual_cost
        return (self.gain / self.answered + exploration * spread) / cost


@dataclass(frozen=True)
class Portfolio:
    kind: Literal["portfolio"] = "portfolio"
    arms: tuple[Annotated[AnyArm, Discriminator("kind")], ...] = (
        Fsr(depth=ENDLESS),
        Contrastive(),
        Evolve(),
        BestOfN(),
    )
    """Until a candidate is correct all strategies ask alike, so only the first one asks; one that
    has ended leaves its questions to the others."""
    models: tuple[str, ...] = ()
    """By default all that the campaign asks, where these are several."""
    exploration: float = 0.3
    across: Allocation = field(default_factory=Allocation)

    def __post_init__(self) -> None:
        kinds = [arm.kind for arm in self.arms]
        if not kinds or len(set(kinds)) < len(kinds):
            raise ValueError("expected one or more arms, each of another kind")
        if not self.exploration >= 0:
            raise ValueError(f"exploration is {self.exploration}; expected 0 or more")

    def asks(self, scene: Scene, history: Sequence[Attempt], n: int, round: int) -> list[Ask]:
        begun = any(log_speedup(attempt) is not None for attempt in history)
        able = [s for s in self.arms if not isinstance(s, Fsr) or round < s.depth]
        strategies = able if begun else able[:1]
        models: Sequence[str | None] = self.models or (None,)
        arms = [Arm(strategy, model) for strategy in strategies for model in models]
        asked: list[Ask] = []
        for arm, count in self.shares(arms, history, scene.repeats, n).items():
            seen = [a for a in history if _is_for(arm, a)]
            for ask in arm.strategy.asks(scene, seen, count, round):
                features = {**ask.features, ARM: arm.label, GENERATION: round}
                step = f"{arm.strategy.kind} {ask.step}"
                asked.append(
                    replace(ask, step=step, features=features, arm=arm.label, model=arm.model)
                )
        return asked

    def shares(
        self,
        arms: Sequence[Arm],
        history: Sequence[Attempt],
        repeats: Sequence[Proposal],
        n: int,
    ) -> dict[Arm, int]:
        """How many of `n` questions each arm gets, in the arms' order."""
        found = scores(history, repeats)
        mine = {arm: found.get(arm.label, Score()) for arm in arms}
        total = sum(score.pulls for score in mine.values())
        answered = sum(score.answered for score in mine.values())
        usual = sum(score.cost for score in mine.values()) / max(1, answered) or 1.0
        counts = dict.fromkeys(arms, 0)
        for _ in range(n if arms else 0):
            # The first of equals: max keeps the arms' order.
            chosen = max(arms, key=lambda arm: mine[arm].index(total, self.exploration, usual))
            counts[chosen] += 1
            mine[chosen].pulls += 1
            total += 1
        return {arm: count for arm, count in counts.items() if count}


def scores(history: Sequence[Attempt], repeats: Sequence[Proposal]) -> dict[str, Score]:
    """By arm; of the round under way nothing is known."""
    paid = [*(attempt.proposal for attempt in history), *repeats]
    cost_of = _costs([p for p in paid if ARM in p.features])
    found: dict[str, Score] = {}
    for proposal in paid:
        if (label := proposal.features.get(ARM)) is not None:
            score = found.setdefault(str(label), Score())
            score.pulls += 1
            score.answered += 1
            score.cost += cost_of[id(proposal)]
    for attempt, gain in gains(history):
        if (label := attempt.proposal.features.get(ARM)) is not None:
            found[str(label)].gain += gain
    return found


def gains(history: Sequence[Attempt]) -> list[tuple[Attempt, float]]:
    """Each attempt with what it added to the best before its round, in 0..1."""
    best: float | None = None
    before: float | None = None
    generation: object = None
    found = []
    for attempt in history:
        own = attempt.proposal.features.get(GENERATION)
        if own is None or own != generation:
            generation, before = own, best
        speed = log_speedup(attempt)
        gain = 0.0
        if speed is not None:
            gain = FIRST_CORRECT + max(0.0, speed) if before is None else speed - before
            best = speed if best is None else max(best, speed)
        found.append((attempt, min(1.0, max(0.0, gain) / LARGE_GAIN)))
    return found


def _costs(proposals: Sequence[Proposal]) -> Mapping[int, float]:
    """By identity, all in one unit: dollars, else tokens, else answers."""
    usages = [p.usage for p in proposals]
    if all(usage.cost_usd for usage in usages):
        costs = [usage.cost_usd or 0.0 for usage in usages]
    elif all(usage.prompt_tokens + usage.completion_tokens for usage in usages):
        costs = [float(usage.prompt_tokens + usage.completion_tokens) for usage in usages]
    else:
        costs = [1.0] * len(usages)
    return {id(p): cost for p, cost in zip(proposals, costs, strict=True)}


def _is_for(arm: Arm, attempt: Attempt) -> bool:
    """Whether the arm is told of it: its own, and whatever is correct."""
    return attempt.evaluation.passed or attempt.proposal.features.get(ARM) == arm.label
