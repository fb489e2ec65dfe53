"""The same stream of candidates through 1, 2, 4 GPUs with Ray: candidates a minute, and the ratio.

    python -m benchmarks.scaling --gpus 1,2,4 --candidates 400 --out benchmarks/results/scaling.json

Every run has its own sources (one comment differs), so that nothing is cached but references' null
experiments, which the first lane of all measures before any clock runs. Each run starts Ray anew
with so many GPUs of this machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from concurrent.futures import wait
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from agent.ray_engine import RayEngine
from benchmarks.candidates.mixed import Sample, mixed
from benchmarks.stream import BUSY, CONFIG, admitted
from kernelbench.suite import load_tasks
from sandbox.evaluator import LocalEvaluator, ahead
from sandbox.types import Task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="builtin")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpus", default="1,2,4")
    parser.add_argument("--candidates", type=int, default=400)
    parser.add_argument("--tasks", type=int, help="only so many of the suite")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out:  # now, not once the devices' time is spent
        options.out.parent.mkdir(parents=True, exist_ok=True)
    evaluator = LocalEvaluator(options.device)
    tasks = admitted(evaluator, load_tasks(options.suite, options.device)[: options.tasks])
    environment = evaluator.facts.environment
    evaluator.close()
    runs: list[dict[str, Any]] = []
    record = {
        "date": datetime.now(UTC).isoformat(),
        "command": shlex.join(["python", "-m", "benchmarks.scaling", *sys.argv[1:]]),
        "environment": environment,
        "runs": runs,
    }
    for gpus in map(int, options.gpus.split(",")):
        salt = f"{time.time_ns()} {gpus} "
        runs.append(run(options.device, gpus, mixed(tasks, options.candidates, salt), tasks))
        runs[-1]["ratio"] = round(runs[-1]["per_minute"] / runs[0]["per_minute"], 3)
        print(json.dumps(runs[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(record, indent=1))


def run(device: str, gpus: int, samples: list[Sample], tasks: list[Task]) -> dict[str, Any]:
    """One pass over all samples on that many lanes; the clock starts once every lane has worked."""
    engine = RayEngine(
        partial(LocalEvaluator, device),
        device=device,
        gpus=gpus if device == "cuda" else None,
        depth=ahead(device),
    )
    try:
        wait([engine.submit_prepare(task, CONFIG) for task in tasks[: engine.lanes]])
        began = time.monotonic()
        futures = [
            engine.submit_evaluate(sample.task, sample.candidate, CONFIG, 1.0) for sample in samples
        ]
        found = [future.result() for future in futures]
        wall_s = time.monotonic() - began
    finally:
        engine.close()
    held = sum(e.seconds.get(stage, 0.0) for e in found for stage in BUSY)
    wrong = sum(e.status is not s.expected for e, s in zip(found, samples, strict=True))
    return {
        "gpus": gpus,
        "lanes": engine.lanes,
        "candidates": len(found),
        "wall_s": round(wall_s, 2),
        "per_minute": round(60 * len(found) / wall_s, 1),
        "busy_share": round(held / wall_s / engine.lanes, 3),
        "unexpected": wrong,
        "statuses": dict(Counter(e.status.value for e in found)),
    }


if __name__ == "__main__":
    main()
