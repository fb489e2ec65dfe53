"""Before a campaign begins: who can work on what, and whether anything is left to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial

from agent.engines.lanes import LanePool, NoLane
from agent.journals.journal import Journal
from agent.loop.budget import CampaignConfig
from agent.loop.decisions import End, next_step
from agent.loop.schedule import TaskRun
from agent.types import Proposer
from sandbox.types import Task

AT_ONCE = 8
POLL_S = 0.2


def examine(
    tasks: Sequence[Task], proposers: Sequence[Proposer], interrupted: Callable[[], bool]
) -> list[TaskRun]:
    """Ask every proposer about every task, side by side: the feature proposer traces each one.

    Before anything is measured, since tracing needs the cores. What an interrupt leaves unasked
    counts as possible.
    """
    pool = LanePool("examine", [NoLane] * min(AT_ONCE, os.cpu_count() or 1))
    futures = [pool.submit(partial(_refusals, task, proposers)) for task in tasks]
    while wait(futures, timeout=POLL_S).not_done and not interrupted():
        pass
    runs = []
    for index, (task, future) in enumerate(zip(tasks, futures, strict=True)):
        refusals = future.result() if future.done() else {}
        able = [p for p in proposers if refusals.get(p.name) is None]
        reason = "" if able else "; ".join(f"{name}: {why}" for name, why in refusals.items())
        runs.append(TaskRun(task, index, able, reason=reason))
    pool.close(grace_s=0.0)
    return runs


def ended(
    runs: Sequence[TaskRun], journal: Journal, config: CampaignConfig, waves_open: bool
) -> bool:
    """Each of these tasks came to its end in an earlier call."""
    steps = (
        next_step(run, journal.proposals(run.task.id), config, searching=True, waves=waves_open)
        for run in runs
    )
    return not any(run.again for run in runs) and all(isinstance(step, End) for step in steps)


def _refusals(task: Task, proposers: Sequence[Proposer], _: NoLane) -> dict[str, str | None]:
    return {proposer.name: proposer.unsupported(task) for proposer in proposers}
