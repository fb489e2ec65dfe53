"""Contrastive exemplars (CUDA-L1, arXiv 2507.14111, section 1.4 of its stage 3), without training.

Passed candidates lie in buckets of log-speedup. A question shows exemplars from *distinct* buckets,
drawn with P(bucket) ~ exp((mean - mu) / tau), uniformly within a bucket, and demands an analysis of
why one is faster, then a design, then code. The paper publishes neither the bucket width nor tau:
both are settings here, tau by default the standard deviation of the buckets' means.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agent.learner import POLICY_VERSION
from agent.prompts.render import Scene, render_contrast
from agent.strategies.lineage import (
    fresh,
    log_speedup,
    open_failures,
    repairs,
    start,
    writable,
)
from agent.strategies.types import CONTRAST, Ask
from agent.types import Attempt, Proposal
from sandbox.types import digest

NO_VERSION = -1
"""Of what no policy in training wrote."""


@dataclass(frozen=True)
class Bucket:
    attempts: tuple[Attempt, ...]
    mean: float
    """Of its attempts' log-speedups."""


@dataclass(frozen=True)
class Contrastive:
    kind: Literal["contrastive"] = "contrastive"
    exemplars: int = 2
    selection: Literal["buckets", "random"] = "buckets"
    """random: any passed candidates, each as likely; what buckets are compared with."""
    bucket_width: float = 0.15
    """In log-speedup."""
    temperature: float | None = None
    """tau; by default the standard deviation of the buckets' means."""
    repair_turns: int = 2
    repair_share: float = 0.34
    """Of a round, once something has passed."""
    samples_per_prompt: int = 1
    """So many replies to each prompt: the group that a policy's rewards are normalised in."""
    unshown_share: float = 0.0
    """Of the prompts that nothing is repaired by: asked without exemplars, as a policy is where
    nothing is known yet. None in the paper."""
    turns: int = 1
    """Rounds an episode lasts: in each but the first, what the same weights got wrong is repaired,
    and the rest of the round asked anew."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples_per_prompt < 1:
            raise ValueError(f"samples_per_prompt is {self.samples_per_prompt}; expected 1 or more")
        if not 1 <= self.turns <= 4:
            raise ValueError(f"turns is {self.turns}; expected 1..4")
        if self.exemplars < 1 or not self.bucket_width > 0:
            raise ValueError("expected exemplars >= 1 and bucket_width > 0")
        if not 0 <= self.repair_share <= 1 or not 0 <= self.unshown_share <= 1:
            raise ValueError("expected repair_share and unshown_share in 0..1")
        if self.temperature is not None and not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; expected above 0")

    def asks(self, scene: Scene, history: Sequence[Attempt], n: int, round: int) -> list[Ask]:
        found = buckets(history, self.bucket_width)
        if self.turns > 1:
            failed = self._in_this_episode(scene, history, round)[:n]
            if not found:
                return repairs(scene, failed) + fresh(scene, n - len(failed))
        elif not found:
            return start(scene, history, n, self.repair_turns)
        else:
            failed = open_failures(history, self.repair_turns, scene.repeats)
            failed = failed[: int(n * self.repair_share)]
        asked = repairs(scene, failed)
        for place in range(n - len(asked)):
            group = place // self.samples_per_prompt
            dice = random.Random(digest([self.seed, scene.task.hash, round, group]))
            if self.unshown_share and dice.random() < self.unshown_share:
                asked += fresh(scene, 1)
                continue
            shown = self.shown(found, dice)
            parents = tuple(attempt.proposal.candidate.id for attempt in shown)
            fastest = shown[-1].proposal.candidate.language
            messages = render_contrast(replace(scene, language=fastest), shown)
            asked.append(Ask(CONTRAST, fastest, messages, parents))
        return asked

    def shown(self, found: Sequence[Bucket], dice: random.Random) -> list[Attempt]:
        """Exemplars, slowest first."""
        if self.selection == "buckets":
            return draw(found, self.exemplars, self.temperature, dice)
        passed = [attempt for bucket in found for attempt in bucket.attempts]
        return by_speedup(dice.sample(passed, min(self.exemplars, len(passed))))

    def _in_this_episode(
        self, scene: Scene, history: Sequence[Attempt], round: int
    ) -> list[Attempt]:
        """What is to be repaired: failures of the newest weights, whose updates end episodes. All
        that those wrote may be known programs, which no history has.
        """
        if round % self.turns == 0:
            return []
        paid = [*(attempt.proposal for attempt in history), *scene.repeats]
        newest = max((_version(proposal) for proposal in paid), default=NO_VERSION)
        own = [attempt for attempt in history if _version(attempt.proposal) == newest]
        return open_failures(own, self.turns - 1, scene.repeats)


def _version(proposal: Proposal) -> int:
    return int(proposal.features.get(POLICY_VERSION, NO_VERSION))


def draw(
    found: Sequence[Bucket], count: int, temperature: float | None, dice: random.Random
) -> list[Attempt]:
    """Up to `count` attempts from distinct buckets, slowest first."""
    left = list(found)
    shown: list[Attempt] = []
    while left and len(shown) < count:
        bucket = dice.choices(left, probabilities(left, temperature))[0]
        left.remove(bucket)
        shown.append(dice.choice(bucket.attempts))
    return by_speedup(shown)


def by_speedup(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Slowest first."""
    return sorted(attempts, key=lambda attempt: log_speedup(attempt) or 0.0)


def buckets(history: Sequence[Attempt], width: float) -> list[Bucket]:
    """Distinct passed candidates by log-speedup, [k * width, (k + 1) * width), slowest first."""
    by_place: dict[int, dict[str, Attempt]] = {}
    for attempt in history:
        speed = log_speedup(attempt)
        if speed is not None and writable(attempt):
            place = by_place.setdefault(math.floor(speed / width), {})
            place.setdefault(attempt.proposal.candidate.id, attempt)
    return [
        Bucket(tuple(held.values()), sum(log_speedup(a) or 0.0 for a in held.values()) / len(held))
        for _, held in sorted(by_place.items())
    ]


def probabilities(found: Sequence[Bucket], temperature: float | None) -> list[float]:
    """P(bucket) ~ exp((mean - mu) / tau), mu the mean of the buckets' means."""
    means = [bucket.mean for bucket in found]
    mu = sum(means) / len(means)
    spread = math.sqrt(sum((mean - mu) ** 2 for mean in means) / len(means))
    tau = temperature if temperature is not None else spread
    if tau == 0:
        return [1 / len(means)] * len(means)
    # Shifted by the largest, so that a small tau does not overflow.
    weights = [math.exp((mean - max(means)) / tau) for mean in means]
    return [weight / sum(weights) for weight in weights]
