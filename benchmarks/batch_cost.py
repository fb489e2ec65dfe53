"""What a batch takes beyond its calls: the same kernels in batches of different lengths.

    python -m benchmarks.batch_cost builtin/rotary_embedding builtin/softmax --out FILE

A batch of n calls takes a + n t. Each task's reference and the feature proposer's first kernel (the
reference again, where there is none) are timed in batches of several lengths, each in an evaluation
of its own; a line through the seconds of the batches tells a, which should be nothing, and t.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.features.proposer import FeatureProposer
from benchmarks.keeping import header, keep_json, stop_cleanly
from kernelbench.suite import load_tasks
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Task

LENGTHS_MS = (5.0, 10.0, 20.0, 40.0)
"""Of the reference's batches."""
SIDES = ("reference", "candidate")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300.0, help="stop starting new work after")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    stop_cleanly()
    evaluator = LocalEvaluator(asked.device)
    config = EvalConfig(baselines=(), min_pairs=asked.pairs, max_pairs=asked.pairs)
    rows: list[dict[str, Any]] = []
    record = {**header("batch_cost"), "environment": evaluator.facts.environment, "rows": rows}
    start = time.monotonic()
    try:
        for task in (t for suite in asked.suites for t in load_tasks(suite, asked.device)):
            if time.monotonic() - start < asked.seconds:
                rows.append(measured(evaluator, task, config))
                print(line(rows[-1]), flush=True)
                keep_json(asked.out, record)
    finally:
        evaluator.close()
    costs = [row[side]["cost_us"] for row in rows for side in SIDES if side in row]
    if costs:
        print(f"beyond its calls a batch takes {statistics.median(costs):.0f} us in the median")


def measured(evaluator: LocalEvaluator, task: Task, config: EvalConfig) -> dict[str, Any]:
    """Both sides in every length, and their lines."""
    made = FeatureProposer().propose(task, [], 1)
    source = task.source.replace("class Model(", "class ModelNew(")
    again = Candidate(task.id, Language.TORCH, source)
    candidate = made[0].candidate if made else again
    row: dict[str, Any] = {"task": task.id, "batches": []}
    for length_ms in LENGTHS_MS:
        result = evaluator.evaluate(task, candidate, replace(config, batch_ms=length_ms))
        if result.timing is None:
            row["failed"] = f"{result.status}: {result.detail}"
            return row
        timing = result.timing
        row["batches"].append([timing.sets, timing.reference_ms, timing.candidate_ms])
    for side, column in zip(SIDES, (1, 2), strict=True):
        calls = [batch[0] for batch in row["batches"]]
        seconds = [batch[0] * batch[column] / 1e3 for batch in row["batches"]]
        if len(set(calls)) > 1:  # else memory allows no longer ones
            cost_s, call_s = fitted(calls, seconds)
            row[side] = {"cost_us": cost_s * 1e6, "call_us": call_s * 1e6}
    return row


def fitted(calls: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(a, t) of the line a + n t through batches of n calls: relative errors count alike, since a
    long batch is off by more.
    """
    weights = [1 / s**2 for s in seconds]
    total = sum(weights)
    middle = sum(w * n for w, n in zip(weights, calls, strict=True)) / total
    height = sum(w * s for w, s in zip(weights, seconds, strict=True)) / total
    along = sum(w * (n - middle) ** 2 for w, n in zip(weights, calls, strict=True))
    both = zip(weights, calls, seconds, strict=True)
    slope = sum(w * (n - middle) * (s - height) for w, n, s in both) / along
    return height - slope * middle, slope


def line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['task']}: {row['failed']}"
    told = [
        f"{side} {row[side]['call_us']:.1f} us a call, {row[side]['cost_us']:.0f} us a batch"
        for side in SIDES
        if side in row
    ]
    return f"{row['task']}: {'; '.join(told) or 'no two lengths'}"


if __name__ == "__main__":
    main()
