"""How much a campaign may spend, and each task's even share of it. Pure: no clock is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from agent.limits import ABOVE_0, Least, refuse_too_small
from agent.loop.allocation import Allocation
from sandbox.types import EvalConfig

CONFIRM_SHARE = 0.12
"""Of `max_seconds`, kept for confirming winners."""
LEAST = {
    "proposals_per_round": Least(1),
    "max_candidates_per_task": Least(1),
    "max_candidates": Least(1),
    "max_updates": Least(1),
    "max_seconds": ABOVE_0,
    "tasks_at_once": Least(1),
}


@dataclass(frozen=True)
class CampaignConfig:
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    device: str = "cpu"
    proposals_per_round: int = 3
    max_candidates_per_task: int = 6
    max_candidates: int | None = None
    """Over all tasks, shared evenly before the start."""
    max_updates: int | None = None
    """Of a learner's weights; nothing is proposed after the last."""
    max_seconds: float | None = None
    """Of this call; what is under way when it ends is still recorded."""
    tasks_at_once: int | None = None
    """By default 4, or twice the lanes where that is more."""
    confirm: bool = True
    """Measure each winner afresh after it was selected."""
    learn: bool = False
    """A policy learns from the figures: all abnormal ones are measured again."""
    search_figures: bool = False
    """Where nothing is confirmed, measure as in a search all the same: quick figures that rank, and
    that rewards are made of."""
    allocation: Allocation | None = None
    """How tasks share the candidates and when one is done; by default evenly, and never early."""

    def __post_init__(self) -> None:
        refuse_too_small(self, LEAST)


def share_candidates(config: CampaignConfig, tasks: int) -> list[int]:
    """Candidates for each task, fixed before the start, so that speed decides nothing."""
    total, most = config.max_candidates, config.max_candidates_per_task
    if total is None:
        return [most] * tasks
    return [min(most, total // tasks + (i < total % tasks)) for i in range(tasks)]


def first_candidates(config: CampaignConfig, tasks: int) -> list[int]:
    """Candidates for each task before any is preferred: all of its share, where none is."""
    even = share_candidates(config, tasks)
    if not shares_headroom(config):
        return even
    part = config.allocation.first_share if config.allocation is not None else 1.0
    return [min(share, max(config.proposals_per_round, int(share * part))) for share in even]


def shares_headroom(config: CampaignConfig) -> bool:
    """Whether some candidates go where headroom is left."""
    allocation = config.allocation
    return (
        allocation is not None
        and allocation.spend == "headroom"
        and config.max_candidates is not None
    )


def search_seconds(config: CampaignConfig) -> float:
    """Part of `max_seconds` in which candidates are sought; the rest confirms winners."""
    return (config.max_seconds or math.inf) * (1 - CONFIRM_SHARE * config.confirm)


def share_seconds(
    config: CampaignConfig, elapsed_s: float, tasks_left: int, at_once: int
) -> float | None:
    """Seconds of search for a task that begins now; None without a limit."""
    if config.max_seconds is None:
        return None
    return max(0.0, search_seconds(config) - elapsed_s) * min(1.0, at_once / tasks_left)
