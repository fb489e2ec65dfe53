"""What a turn of an episode is worth: its own reward and, discounted, that of what came of it.

After Kevin-32B (arXiv 2507.11948): every turn is a sample of its own, its return the sum of its
reward and gamma times the next turn's return. Where one failure was repaired several times the next
turn's return is their mean. A hack earns nothing by a repair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from agent.learner import Rollout
from sandbox.types import Status


def returns(
    rollouts: Sequence[Rollout], values: Sequence[float | None], discount: float
) -> list[float | None]:
    """Of one generation's rollouts, given in the order they were made, with their rewards.

    None stays None: a fault of ours is worth nothing, and as a repair it is left out of the mean.
    """
    later: dict[tuple[str, str], list[float]] = defaultdict(list)
    found: list[float | None] = []
    # From the last to the first: a repair is made after what it repairs.
    for rollout, value in zip(reversed(rollouts), reversed(values), strict=True):
        total = value
        repaired = later.get((rollout.task_id, rollout.candidate_id))
        if total is not None and repaired and rollout.evaluation.status is not Status.REWARD_HACK:
            total += discount * sum(repaired) / len(repaired)
        found.append(total)
        if rollout.repair and total is not None:
            for parent in rollout.parents[:1]:
                # Not of itself: a repair that came back unchanged.
                if parent != rollout.candidate_id:
                    later[rollout.task_id, parent].append(total)
    return found[::-1]


def hacks_last(rollouts: Sequence[Rollout], values: Sequence[float | None]) -> list[float | None]:
    """The same, but a hack is worth no more than the least: a failure whose repairs failed as well
    adds up to less than a failure alone, and with smoothing to less than a hack.
    """
    least = min((value for value in values if value is not None), default=0.0)
    return [
        least if value is not None and r.evaluation.status is Status.REWARD_HACK else value
        for r, value in zip(rollouts, values, strict=True)
    ]
