"""A/A through the whole path: the reference as its own candidate, on many tasks.

    python -m benchmarks.null_experiment builtin --repetitions 3 --out benchmarks/results/null.json

Each repetition is one full evaluation (fresh process pairs, fresh secrets), of another source.
Reported per task: call time, the ratios, the interval, and whether the interval holds 1.0. With
`--search` it is one as a search makes it: a warm reference, short batches, one pair.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.keeping import header, keep_json, stop_cleanly
from kernelbench.suite import load_tasks
from sandbox.errors import WarpsmithError
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language, Task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", choices=("own", "cpu", "both"), default="own")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--search", action="store_true", help="figures as a search has them")
    parser.add_argument("--seconds", type=float, default=500.0, help="stop starting new work after")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stop_cleanly()
    tasks = chosen(options.suites, options.device, options.sizes)
    evaluator = LocalEvaluator(options.device)
    config = EvalConfig(baselines=(), min_pairs=options.pairs, max_pairs=max(options.pairs, 2))
    to_beat = 1.0 if options.search else None
    rows: list[dict[str, Any]] = []
    record = {
        **header("null_experiment"),
        "environment": evaluator.facts.environment,
        "rows": rows,
    }
    start = time.monotonic()
    try:
        for task in tasks:
            for repetition in range(options.repetitions):
                if time.monotonic() - start < options.seconds:
                    rows.append(measure(evaluator, task, config, repetition, to_beat))
                    print(line(rows[-1]), flush=True)
                    if options.out:
                        keep_json(options.out, record)
    finally:
        evaluator.close()
    timed = [r for r in rows if "ratio" in r]
    held = sum(r["low"] <= 1.0 <= r["high"] for r in timed)
    print(f"{held} of {len(timed)} intervals hold 1.0")
    for name, least, most, allowed in BANDS:
        band = [abs(math.log(r["ratio"])) for r in timed if least <= r["call_us"] < most]
        if band:
            print(f"{name}: worst {max(band):.4f}, allowed {allowed}, {len(band)} evaluations")


def chosen(suites: list[str], device: str, sizes: str) -> list[Task]:
    """Tasks at the device's sizes, at those meant for a CPU (calls of microseconds), or both."""
    found = [t for suite in suites for t in load_tasks(suite, device)] if sizes != "cpu" else []
    if sizes != "own":
        small = [t for suite in suites for t in load_tasks(suite, "cpu")]
        found += [replace(t, id=f"{t.id} (small)", device=device) for t in small]
    return found


BANDS = (
    ("calls over 300 us", 300.0, math.inf, 0.01),
    ("30-300 us", 30.0, 300.0, 0.03),
    ("below 30 us", 0.0, 30.0, 0.06),
)


def measure(
    evaluator: LocalEvaluator,
    task: Task,
    config: EvalConfig,
    repetition: int,
    to_beat: float | None,
) -> dict[str, Any]:
    """One evaluation of the reference as candidate; of a search that has `to_beat`."""
    row: dict[str, Any] = {"task": task.id, "repetition": repetition}
    begin = time.monotonic()
    try:
        found = evaluator.evaluate(task, itself(task, repetition), config, to_beat=to_beat)
    except WarpsmithError as error:
        return {**row, "status": type(error).__name__, "detail": str(error)}
    row |= {"status": found.status.value, "detail": found.detail, "seconds": found.seconds}
    row["wall_s"] = time.monotonic() - begin
    if found.timing is not None:
        speedup = found.timing.speedup
        row |= {
            "call_us": found.timing.reference_ms * 1e3,
            "ratio": speedup.value,
            "low": speedup.low,
            "high": speedup.high,
            "sets": found.timing.sets,
            "noise_floor": found.timing.noise_floor,
            "pairs": [round(p.log_speedup, 5) for p in found.timing.pairs],
            "pair_us": [
                [round(ms * 1e3, 2) for ms in (p.reference_ms, p.candidate_ms)]
                for p in found.timing.pairs
            ],
        }
    return row


def itself(task: Task, repetition: int = 0) -> Candidate:
    """The task's reference as a candidate, another one for every repetition."""
    source = task.source.replace("class Model(", "class ModelNew(")
    source = source.replace("super(Model, self)", "super(ModelNew, self)")
    return Candidate(task.id, Language.TORCH, f"{source}\n# {repetition}\n")


def line(row: dict[str, Any]) -> str:
    if "ratio" not in row:
        return f"{row['task']:44} {row['status']} {row['detail'][:120]}"
    stages = {k: round(v, 2) for k, v in row["seconds"].items()}
    return (
        f"{row['task']:44} {row['call_us']:9.1f} us  {row['ratio']:.4f} "
        f"[{row['low']:.4f}, {row['high']:.4f}] sets {row['sets']} {row['pairs']} {stages}"
    )


if __name__ == "__main__":
    main()
