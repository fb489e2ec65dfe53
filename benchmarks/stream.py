"""The pipeline full: 200 mixed candidates through one evaluator, seconds per verdict, busy share.

    python -m benchmarks.stream --out benchmarks/results/h200_stream.json
    python -m benchmarks.stream --ahead 1 --candidates 60    # one by one, for comparison

Null experiments are timed before the stream begins and are reported apart. The stream searches:
each candidate has to beat the best known of its task when it is submitted. Busy is the share of
wall time in which the device was held to verify, warm up or time a candidate; amortised seconds
leave out what came before the pipeline was full.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.candidates.mixed import Sample, mixed
from benchmarks.keeping import header, keep_json, stop_cleanly
from kernelbench.suite import load_tasks
from sandbox.errors import InvalidReference, SandboxFault
from sandbox.evaluator import LocalEvaluator
from sandbox.many import ahead, evaluate_many
from sandbox.types import EvalConfig, Evaluation, Request, Status, Task

KEPT_EVERY = 20
"""Candidates between two writes of the record."""
BUSY = ("verify", "warm", "time")
CONFIG = EvalConfig(rounds=6, max_pairs=3, baselines=())
"""As configs/optimize/gpu.yaml, without baselines."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="builtin")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--tasks", type=int, help="only so many of the suite")
    parser.add_argument("--ahead", type=int, help="candidates under way at once")
    parser.add_argument("--ready", type=int, help="workers of each side kept waiting")
    parser.add_argument("--search-batch-ms", type=float, default=CONFIG.search_batch_ms)
    parser.add_argument("--seconds", type=float, default=420.0, help="submit nothing after")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stop_cleanly()
    most = options.ahead or ahead(options.device)
    evaluator = LocalEvaluator(options.device, ready=options.ready)
    began = time.monotonic()
    tasks = admitted(evaluator, load_tasks(options.suite, options.device)[: options.tasks])
    prepared_s = time.monotonic() - began
    samples = mixed(tasks, options.candidates, salt=str(time.time_ns()))
    config = replace(CONFIG, search_batch_ms=options.search_batch_ms)
    head = {
        **header("stream"),
        "search_batch_ms": config.search_batch_ms,
        "environment": evaluator.facts.environment,
        "ahead": most,
        "prepared_s": round(prepared_s, 1),
        "tasks": len(tasks),
    }
    rows: list[dict[str, Any]] = []
    started, kept = time.monotonic(), 0
    try:
        for one in run(evaluator, samples, config, most, options.seconds):
            rows.append(one)
            if options.out and len(rows) >= kept + KEPT_EVERY:
                kept = len(rows)
                with evaluator._quiet.noise():  # not while something is timed
                    keep_json(options.out, record(head, rows, started, most))
    finally:
        whole = record(head, rows, started, most)
        if options.out:
            keep_json(options.out, whole)
        evaluator.close()
    for key, value in whole.items():
        if key not in ("rows", "environment"):
            print(f"{key}: {value}")


def record(
    head: dict[str, Any], rows: list[dict[str, Any]], started: float, most: int
) -> dict[str, Any]:
    """What is kept of so many rows."""
    wall_s = time.monotonic() - started
    return {**head, **figures(rows, wall_s, most), "rows": rows}


def admitted(evaluator: LocalEvaluator, tasks: Sequence[Task]) -> list[Task]:
    """Those whose references are valid; null experiments are on disk afterwards."""
    found = []
    for task in tasks:
        try:
            evaluator.prepare(task, CONFIG)
            found.append(task)
        except (InvalidReference, SandboxFault) as error:
            print(f"left out: {error}", flush=True)
    return found


def run(
    evaluator: LocalEvaluator,
    samples: Sequence[Sample],
    config: EvalConfig,
    most: int,
    limit_s: float,
) -> Iterator[dict[str, Any]]:
    """A row per candidate, in order, as soon as it is judged."""
    best: dict[str, float] = {}
    began = time.monotonic()

    def requests() -> Iterator[Request]:
        for sample in samples:
            if time.monotonic() - began < limit_s:
                bar = best.get(sample.task.id, 1.0)
                yield Request(sample.task, sample.candidate, config, bar)

    for sample, found in zip(samples, evaluate_many(evaluator, requests(), most), strict=False):
        if found.speedup is not None:
            best[sample.task.id] = max(best.get(sample.task.id, 1.0), found.speedup.low)
        yield row(sample, found, time.monotonic() - began)


def row(sample: Sample, found: Evaluation, at_s: float) -> dict[str, Any]:
    return {
        "task": sample.task.id,
        "kind": sample.kind,
        "language": sample.candidate.language.value,
        "status": found.status.value,
        "expected": found.status is sample.expected,
        "detail": found.detail[:200],
        "speedup": None if found.speedup is None else round(found.speedup.value, 4),
        "rounds": sum(p.rounds for p in found.timing.pairs) if found.timing else 0,
        "at_s": round(at_s, 3),
        "seconds": {stage: round(s, 4) for stage, s in found.seconds.items()},
    }


def figures(rows: Sequence[dict[str, Any]], wall_s: float, most: int) -> dict[str, Any]:
    """What the stream shows. What came to no verdict, by a fault of ours, counts as no candidate a
    minute, nor for what one costs.
    """
    judged = [one for one in rows if one["status"] != Status.SANDBOX_ERROR.value]
    stages: Counter[str] = Counter()
    for one in rows:
        stages.update(one["seconds"])
    full = [one["at_s"] for one in judged[2 * most :]]
    steady_s = (full[-1] - full[0]) / (len(full) - 1) if len(full) > 1 else None
    held = [sum(one["seconds"].get(stage, 0.0) for stage in BUSY) for one in judged]
    # None of a candidate whose reference turned out invalid.
    totals = [one["seconds"]["total"] for one in judged if "total" in one["seconds"]]
    return {
        "candidates": len(rows),
        "wall_s": round(wall_s, 2),
        "amortised_s": None if steady_s is None else round(steady_s, 4),
        "per_minute": round(60 * len(judged) / wall_s, 1),
        "busy_share": round(sum(held) / wall_s, 3),
        "median_device_s": round(statistics.median(held), 4) if held else None,
        "median_latency_s": round(statistics.median(totals), 3) if totals else None,
        "mean_stage_s": {stage: round(s / len(rows), 4) for stage, s in stages.items()},
        "statuses": dict(Counter(one["status"] for one in rows)),
        "unexpected": [
            {k: one[k] for k in ("task", "kind", "status", "detail")}
            for one in rows
            if not one["expected"]
        ],
    }


if __name__ == "__main__":
    main()
