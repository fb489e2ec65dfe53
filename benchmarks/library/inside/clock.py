"""What an installed operator and its reference take, round by round."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .subject import Subject, synchronise

BATCH_S, MOST_SETS, MEMORY_SHARE = 0.02, 64, 0.2
ROUNDS, WARM_S = 12, 0.004
LOOKS, CALLS = 7, 8


def timed(subject: Subject) -> dict[str, Any]:
    """Batches of calls over many sets of inputs, in random order: the reference twice, so that it
    is its own null experiment, and the operator. In milliseconds a call, by round; `launch` is the
    launching thread's part of them.
    """
    first = subject.inputs(0)
    given_bytes = sum(v.nbytes for v in first if isinstance(v, torch.Tensor))
    with torch.no_grad():
        result_bytes = sum(f.nbytes for f in subject.call(first))
        once, _ = batch(subject, subject.reference, [first], WARM_S)
        most = int(MEMORY_SHARE * memory(subject) / max(1, given_bytes + result_bytes))
        count = max(1, min(MOST_SETS, most, math.ceil(BATCH_S / once)))
        sets = [subject.inputs(i) for i in range(count)]
        repeats = max(1, math.ceil(BATCH_S / once / count))
        runs = {
            "reference": subject.reference,
            "again": subject.reference,
            "operator": subject.call,
        }
        if subject.core is not None:
            os.sched_setaffinity(0, {subject.core})  # this thread's: the one that launches
        chance, before = random.Random(subject.seed), subject.count()
        rounds = []
        for _ in range(ROUNDS):
            taken = {"pace_us": 0.0 if subject.core is None else pace_us()}
            for name in chance.sample(list(runs), len(runs)):
                whole_s, launching_s = batch(subject, runs[name], sets, WARM_S, repeats)
                taken[f"{name}_ms"] = whole_s * 1e3
                taken[f"{name}_launch_ms"] = launching_s * 1e3
            rounds.append(taken)
        hits = subject.count() - before
    assert hits >= ROUNDS * count * repeats, "not every timed call ran the kernel"
    return {"rounds": rounds, "calls": count * repeats, "sets": count}


def pace_us() -> float:
    """That some calls of a tiny operator of the CPU take: the same code that launches run through.

    Neighbours that nobody here sees slow a core down for seconds; sixty microseconds of a kernel
    no longer hide the launching of the next one then.
    """
    spent, tiny = [], torch.zeros(8)
    for _ in range(LOOKS):
        start = time.perf_counter()
        for _ in range(CALLS):
            torch.relu(tiny)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e6


def batch(
    subject: Subject,
    run: Callable[[Any], Any],
    sets: Sequence[Any],
    warm_s: float,
    repeats: int = 1,
) -> tuple[float, float]:
    """Seconds a call, after a warm-up on the last set, and those of it that the launching thread
    took. Results stay until their set is called again, as in a campaign: memory that was let go of
    just now is written faster.
    """
    end = time.perf_counter() + warm_s
    while True:
        run(sets[-1])
        synchronise(subject)  # else so many calls wait in the queue as can be launched meanwhile
        if time.perf_counter() > end:
            break
    held: list[Any] = [None] * len(sets)
    start = time.perf_counter()
    for _ in range(repeats):
        for number, inputs in enumerate(sets):
            held[number] = run(inputs)
    launched, calls = time.perf_counter(), repeats * len(sets)
    synchronise(subject)
    return (time.perf_counter() - start) / calls, (launched - start) / calls


def memory(subject: Subject) -> int:
    """Bytes that are free, on a GPU; 2 GiB on the CPU."""
    return int(torch.cuda.mem_get_info()[0]) if subject.device.type == "cuda" else 2 << 30
