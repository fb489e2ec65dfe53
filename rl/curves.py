"""A learning run's figures as TensorBoard files, beside its journal, which has them as well.

One point an update, by policy version (a generation that changed nothing shares one with the update
before); a few replies of each generation with their verdicts. Where tensorboardX is not installed
nothing is written here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from agent.learner import Rollout

log = logging.getLogger(__name__)

FOLDER = "curves"
SHOWN = 4
"""Replies of a generation, evenly over it."""
CHARACTERS = 6000
"""Of a reply, at most."""


def write_curves(
    folder: Path, version: int, figures: Mapping[str, float], rollouts: Sequence[Rollout]
) -> None:
    """Adds what one update did; events of an update that a kill repeats are written twice."""
    if find_spec("tensorboardX") is None:
        log.info("no curves: tensorboardX is not installed")
        return
    from tensorboardX import SummaryWriter

    # A writer names its file by the second, and a generation that changes nothing may take less.
    with SummaryWriter(str(folder / FOLDER), filename_suffix=f".{time.time_ns()}") as writer:
        for name, value in figures.items():
            tag = name if "/" in name else f"rollouts/{name}"
            writer.add_scalar(tag, value, version)
        for place, rollout in enumerate(chosen(rollouts)):
            writer.add_text(f"replies/{place}", as_text(rollout), version)


def chosen(rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    step = max(1, len(rollouts) // SHOWN)
    return rollouts[::step][:SHOWN]


def as_text(rollout: Rollout) -> str:
    """Markdown: the verdict, then the reply as written."""
    judged = rollout.evaluation
    speed = "" if judged.speedup is None else f", {judged.speedup.value:.2f}x eager"
    verdict = f"{rollout.task_id}: {judged.status.value}{speed} {judged.detail}".strip()
    body = rollout.reply[:CHARACTERS].replace("\n", "\n    ")
    return f"{verdict}\n\n    {body}"
