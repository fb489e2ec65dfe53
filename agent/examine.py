"""Who can work on what: every proposer is asked about every task before a campaign begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial

from agent.lanes import LanePool, NoLane
from agent.schedule import TaskRun
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


def _refusals(task: Task, proposers: Sequence[Proposer], _: NoLane) -> dict[str, str | None]:
    return {proposer.name: proposer.unsupported(task) for proposer in proposers}
