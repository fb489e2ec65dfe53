"""What one generation of rollouts was like: named figures, for the journal and for curves. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from agent.learner import Rollout
from kernelbench.metrics import geometric_mean
from rewards.terms import RewardConfig, score
from rl.trainers import Group
from sandbox.types import Status


def summary(rollouts: Sequence[Rollout], reward: RewardConfig) -> dict[str, float]:
    """Mean reward and its terms, the shares that passed, cheated or say nothing, the geometric mean
    of speedups, and seconds from proposal to verdict.
    """
    scored = [score(r.evaluation, reward, r.reply) for r in rollouts]
    known = [found.value for found in scored if found.value is not None]
    statuses = [r.evaluation.status for r in rollouts]
    terms: dict[str, float] = defaultdict(float)
    for found in scored:
        for term in found.terms:
            terms[f"term/{term.name}"] += term.weight * term.value / max(len(known), 1)
    speedups = [r.evaluation.speedup for r in rollouts]
    lags = [r.lag_s for r in rollouts if r.lag_s is not None]
    repairs = [r for r in rollouts if r.repair]
    count = len(rollouts)
    figures = {
        "reward": sum(known) / len(known) if known else 0.0,
        "correct": sum(s is Status.PASSED for s in statuses) / count,
        "hacks": sum(s is Status.REWARD_HACK for s in statuses) / count,
        "unscored": (count - len(known)) / count,
        "distinct": len({r.reply for r in rollouts}) / count,
        "speedup": geometric_mean([1.0 if s is None else s.value for s in speedups]) or 1.0,
        "speedup_correct": geometric_mean([s.value for s in speedups if s is not None]) or 1.0,
        **terms,
    }
    if lags:
        figures["lag_s"] = sum(lags) / len(lags)
    if repairs:
        passed = sum(r.evaluation.status is Status.PASSED for r in repairs)
        figures |= {"repairs": len(repairs) / count, "repaired": passed / len(repairs)}
    return figures


def spread(groups: Iterable[Group]) -> dict[str, float]:
    """Mean variance of what a group's members are worth, and the share of groups without any."""
    known = [[v for v in group.rewards if v is not None] for group in groups]
    variances = [statistics.pvariance(values) if len(values) > 1 else 0.0 for values in known]
    if not variances:
        return {}
    return {
        "group_variance": sum(variances) / len(variances),
        "equal_groups": sum(v == 0 for v in variances) / len(variances),
    }
