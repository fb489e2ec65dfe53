"""The same stream of candidates through 1, 2, 4 GPUs with Ray: candidates a minute, and the ratio.

    python -m benchmarks.scaling --gpus 1,2,4 --candidates 400 --out benchmarks/results/scaling.json

Every run has its own sources (one comment differs), so that nothing is cached but references' null
experiments, which the first lane of all measures before any clock runs. Each run starts Ray anew
with so many GPUs of this machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from agent.engines.ray_engine import RayEngine
from benchmarks.candidates.mixed import Sample, mixed
from benchmarks.keeping import header, keep_json, stop_cleanly
from benchmarks.stream import BUSY, CONFIG, admitted
from kernelbench.suite import load_tasks
from sandbox.doctor import gpu_count
from sandbox.evaluator import LocalEvaluator
from sandbox.many import ahead
from sandbox.types import Evaluation, Status, Task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="builtin")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpus", default="1,2,4")
    parser.add_argument("--candidates", type=int, default=400)
    parser.add_argument("--tasks", type=int, help="only so many of the suite")
    parser.add_argument("--seconds", type=float, default=300.0, help="of one run, at most")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stop_cleanly()
    try:
        numbers = [int(gpus) for gpus in options.gpus.split(",")]
    except ValueError:
        parser.error(f"--gpus {options.gpus}: expected numbers, as in 1,2,4")
    if options.device == "cuda" and max(numbers) > gpu_count():
        parser.error(f"--gpus {options.gpus}: this machine has {gpu_count()}")
    # In a process that ends: its context would lie on the first lane's GPU, as a stranger's.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        asked = options.device, options.suite, options.tasks
        tasks, environment = pool.submit(prepared, *asked).result()
    runs: list[dict[str, Any]] = []
    record = {
        **header("scaling"),
        "environment": environment,
        "runs": runs,
    }
    for gpus in numbers:
        salt = f"{time.time_ns()} {gpus} "
        samples = mixed(tasks, options.candidates, salt)
        runs.append(run(options.device, gpus, samples, tasks, options.seconds))
        runs[-1]["ratio"] = round(runs[-1]["per_minute"] / runs[0]["per_minute"], 3)
        print(json.dumps(runs[-1]), flush=True)
        if options.out:
            keep_json(options.out, record)


def prepared(device: str, suite: str, count: int | None) -> tuple[list[Task], dict[str, str]]:
    """The suite's valid tasks, whose null experiments are on disk then, and the environment."""
    evaluator = LocalEvaluator(device)
    try:
        tasks = admitted(evaluator, load_tasks(suite, device)[:count])
        return tasks, dict(evaluator.facts.environment)
    finally:
        evaluator.close()


def run(
    device: str, gpus: int, samples: list[Sample], tasks: list[Task], limit_s: float
) -> dict[str, Any]:
    """One pass over all samples on that many lanes; the clock starts once every lane has worked.

    What is not judged within `limit_s`, by a fault of ours or since its lane was lost, is counted
    and left out.
    """
    engine = RayEngine(
        partial(LocalEvaluator, device),
        device=device,
        gpus=gpus if device == "cuda" else None,
        depth=ahead(device),
    )
    try:
        # Of every lane: its processes and the device's libraries take seconds to begin.
        first = mixed(tasks, engine.lanes, f"first {time.time_ns()} ")
        wait([engine.submit_evaluate(s.task, s.candidate, CONFIG, 1.0) for s in first])
        began = time.monotonic()
        futures = [
            engine.submit_evaluate(sample.task, sample.candidate, CONFIG, 1.0) for sample in samples
        ]
        wait(futures, limit_s)
        judged = [(s, f.result()) for s, f in zip(samples, futures, strict=True) if has_verdict(f)]
        wall_s = time.monotonic() - began
    finally:
        engine.close()
    found = [evaluation for _, evaluation in judged]
    stages: Counter[str] = Counter()
    for evaluation in found:
        stages.update(evaluation.seconds)
    held = sum(stages[stage] for stage in BUSY)
    wrong = sum(e.status is not s.expected for s, e in judged)
    return {
        "gpus": gpus,
        "lanes": engine.lanes,
        "candidates": len(found),
        "not_judged": len(samples) - len(found),
        "why_not": [why_not(f) for f in futures if not has_verdict(f)],
        "wall_s": round(wall_s, 2),
        "per_minute": round(60 * len(found) / wall_s, 1),
        "busy_share": round(held / wall_s / engine.lanes, 3),
        "mean_stage_s": {stage: round(s / max(1, len(found)), 4) for stage, s in stages.items()},
        "unexpected": wrong,
        "statuses": dict(Counter(e.status.value for e in found)),
    }


def why_not(future: Future[Evaluation]) -> str:
    """Of one without a verdict."""
    if not future.done() or future.cancelled():
        return "not done in time"
    error = future.exception()
    return future.result().detail if error is None else f"{type(error).__name__}: {error}"


def has_verdict(future: Future[Evaluation]) -> bool:
    """Whether it holds a verdict by now."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    return future.result().status is not Status.SANDBOX_ERROR


if __name__ == "__main__":
    main()
