"""Latency of a model before and after, in turns, in fresh processes: how to believe a difference.

Each process loads the model, patches it with each variant in turn, and times rounds: in random
order, the model as it is (twice, so that it is its own null experiment), every variant and, where
asked for, the model as it is under torch.compile, each a batch of calls. A process gives one median
log ratio per variant; the interval is the evaluator's, over processes
(sandbox/judging/statistics.py).
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agent.extraction.model import UserModel
from agent.extraction.profile import synchronise
from agent.substitution.report import Latency
from sandbox.figures import Pair
from sandbox.judging.statistics import Null, interval
from sandbox.types import EvalConfig

Call = Callable[..., Any]
BATCH_S = 0.03
ROUNDS = 12
WARM_CALLS = 3
SETS = 4
"""Of inputs, used in turns."""
PLAIN, AGAIN, COMPILED = "as it is", "as it is, again", "torch.compile"


@dataclass(frozen=True)
class Process:
    """What one process measured: median seconds per call, and log ratios to the model as it is."""

    seconds: dict[str, float]
    logs: dict[str, float]
    not_compiled: str = ""
    """Why torch.compile is not among them, though it was asked for."""


def measure(
    user: UserModel, patches: dict[str, Any], device: str, seed: int, compiled: bool = False
) -> Process:
    """`patches` by variant's name, each with `on()` and `off()`, all of them off now."""
    chance = random.Random(seed)
    models: dict[str, Call] = {}
    not_compiled = ""
    if compiled:
        try:
            models[COMPILED] = _compiled(user)
        except Exception as error:  # noqa: BLE001  whatever compilers raise
            not_compiled = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    sets = [user.inputs, *(user.fresh(seed + i) for i in range(1, SETS))]
    names = [PLAIN, AGAIN, *models, *patches]
    taken: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad():
        for name in names:
            _timed(models.get(name, user.model), patches.get(name), sets, WARM_CALLS, device)
        once = _timed(user.model, None, sets, WARM_CALLS, device)
        calls = max(1, math.ceil(BATCH_S / once))
        for _ in range(ROUNDS):
            order = chance.sample(names, len(names))
            for name in order:
                model = models.get(name, user.model)
                taken[name].append(_timed(model, patches.get(name), sets, calls, device))
    logs = {
        name: statistics.median(
            math.log(plain / own) for plain, own in zip(taken[PLAIN], taken[name], strict=True)
        )
        for name in names[1:]
    }
    medians = {name: statistics.median(taken[name]) for name in names}
    return Process(medians, logs, not_compiled)


def _compiled(user: UserModel) -> Call:
    """The model as it is, compiled for these inputs."""
    model: Call = torch.compile(user.model)
    with torch.no_grad():
        model(*user.inputs)
    return model


def _timed(model: Call, patch: Any, sets: Sequence[Any], calls: int, device: str) -> float:
    """Seconds per call of a batch, after one call that is not counted."""
    if patch is not None:
        patch.on()
    try:
        model(*sets[-1])
        synchronise(device)
        start = time.perf_counter()
        for i in range(calls):
            model(*sets[i % len(sets)])
        synchronise(device)
        return (time.perf_counter() - start) / calls
    finally:
        if patch is not None:
            patch.off()


def summarise(processes: Sequence[Process], variant: str) -> Latency:
    """Over at least two processes."""
    pairs = [
        Pair(p.seconds[PLAIN] * 1e3, p.seconds[variant] * 1e3, p.logs[variant], ROUNDS)
        for p in processes
    ]
    null = Null(tuple(p.logs[AGAIN] for p in processes))
    config = EvalConfig(min_pairs=len(pairs), max_pairs=len(pairs))
    return Latency(
        statistics.median(p.reference_ms for p in pairs),
        statistics.median(p.candidate_ms for p in pairs),
        interval(pairs, null, config),
        len(pairs),
        math.expm1(null.floor),
    )
