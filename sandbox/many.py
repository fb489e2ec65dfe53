"""Candidates side by side through one evaluator: while one holds the device, others are loaded."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from sandbox.types import Evaluation, Evaluator, Request

AHEAD = 6
"""On a GPU: loading takes about three times as long as holding the device (measured, H200), and a
context about 0.5 GB of its memory."""


def ahead(device: str, cores: int | None = None) -> int:
    """Candidates that are best under way at once: one holds the device, the others are loaded, on
    so many cores (by default this machine's).
    """
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    return 2 if device == "cpu" else max(2, min(AHEAD, cores // 2))


def evaluate_many(
    evaluator: Evaluator, requests: Iterable[Request], at_once: int
) -> Iterator[Evaluation]:
    """Evaluations in the order of the requests, of which so many are under way at once."""
    under_way: deque[Future[Evaluation]] = deque()
    with ThreadPoolExecutor(at_once, "candidate") as pool:
        for each in requests:
            if len(under_way) > 2 * at_once:
                yield under_way.popleft().result()
            under_way.append(
                pool.submit(
                    evaluator.evaluate,
                    each.task,
                    each.candidate,
                    each.config,
                    to_beat=each.to_beat,
                )
            )
        while under_way:
            yield under_way.popleft().result()
