"""What integrity costs: the same candidates judged with every layer, and by verified timing alone.

    python -m benchmarks.integrity_cost builtin --device cpu --repetitions 3 --out FILE

Verified timing alone is: two walled processes, scaled cases, fresh inputs in every round,
single-set rounds, charged collect, process pairs. Left out there, in this process only: the static
scan, changed inputs, the call in haste, new weights, kept and aged outputs, copies of lone calls'
outputs, questions whether the GPU is idle, second pairs on suspicion, looks at processes and at the
GPU, the profiler. The candidate is the task's own reference; evaluations of both kinds take turns,
as a search judges and as a winner is confirmed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.keeping import header, keep_json, stop_cleanly
from benchmarks.null_experiment import itself
from kernelbench.suite import load_tasks
from sandbox import run
from sandbox.checking import verify
from sandbox.errors import WarpsmithError
from sandbox.evaluator import LocalEvaluator
from sandbox.judging import merging
from sandbox.judging.statistics import t_quantile
from sandbox.pairs import sides
from sandbox.pairs.given import Given
from sandbox.pairs.keepsake import HandedOver, Keepsake
from sandbox.pairs.pair import ProcessPair
from sandbox.run import Run
from sandbox.static.scan import Scan
from sandbox.subjects import stand
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig, Status, Task

LAYERS: tuple[tuple[Any, str, Any], ...] = (
    (run, "scan", lambda _: Scan()),
    (verify, "HASTY_BYTES", 0),
    (Given, "restyle", lambda _: None),
    (Keepsake, "wanted", lambda *_: False),
    (Subject, "grow_old", lambda *_: None),
    (HandedOver, "take", lambda *_: None),
    (ProcessPair, "spoils", lambda *_: False),
    (Subject, "spoil", lambda _: None),
    (merging, "suspected", lambda _: False),
    (merging, "doubtful", lambda *_: False),
    (Run, "look", lambda *_: None),
    (Run, "unmasked", lambda _: True),
    (Run, "promising", lambda _: False),
    (stand, "undisturbed", lambda _: nullcontext()),
    (sides, "probe_of", lambda _: None),
)
"""What is replaced, and by what, for the path alone; changed inputs are a field of EvalConfig."""
MODES: dict[str, float | None] = {"search": 1.0, "confirmation": None}
"""The speedup to beat."""


@contextlib.contextmanager
def path_alone() -> Iterator[None]:
    """No layer but verified timing, in this process."""
    with ExitStack() as stack:
        for owner, name, nothing in LAYERS:
            stack.enter_context(patch.object(owner, name, nothing))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=500.0, help="stop starting new work after")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stop_cleanly()
    tasks = [t for suite in options.suites for t in load_tasks(suite, options.device)]
    evaluator = LocalEvaluator(options.device)
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {
        **header("integrity_cost"),
        "environment": evaluator.facts.environment,
        "rows": rows,
    }
    start = time.monotonic()
    try:
        for task in tasks:
            for repetition in range(options.repetitions):
                if time.monotonic() - start < options.seconds:
                    rows += judged(evaluator, task, repetition)
                    record["costs"] = costs(rows)
                    print(f"{task.id:36} {repetition} {words(record['costs'])}", flush=True)
                    if options.out:
                        keep_json(options.out, record)
    finally:
        evaluator.close()


def judged(evaluator: LocalEvaluator, task: Task, repetition: int) -> list[dict[str, Any]]:
    """The task's reference as its candidate, in both modes, with and without the layers; which of
    the two comes first changes with the repetition.
    """
    candidate = itself(task, repetition)
    rows = []
    for mode, to_beat in MODES.items():
        for layers in (True, False) if repetition % 2 else (False, True):
            config = EvalConfig(baselines=(), min_pairs=3, max_pairs=3)
            if not layers:
                config = replace(config, changes=())
            row: dict[str, Any] = {"task": task.id, "repetition": repetition, "mode": mode}
            row["layers"] = layers
            try:
                evaluator.prepare(task, config)
                with nullcontext() if layers else path_alone():
                    begin = time.monotonic()
                    found = evaluator.evaluate(task, candidate, config, to_beat=to_beat)
                    row["wall_s"] = round(time.monotonic() - begin, 4)
                row |= {"status": found.status.value, "pairs": 0}
                row["seconds"] = {k: round(v, 4) for k, v in found.seconds.items()}
                if found.timing is not None:
                    row["pairs"] = len(found.timing.pairs)
            except WarpsmithError as error:
                row["status"] = str(error)
            rows.append(row)
    return rows


def costs(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By mode: seconds with all layers over seconds without, as the geometric mean over tasks of
    the ratio of medians, with its 95 % t-interval over tasks. Evaluations are compared that made
    as many pairs, since what differs otherwise is chance.
    """
    found: dict[str, Any] = {}
    for mode in MODES:
        logs = []
        for task in sorted({row["task"] for row in rows}):
            mine = [r for r in rows if r["task"] == task and r["mode"] == mode]
            mine = [r for r in mine if r["status"] == Status.PASSED.value]
            usual = statistics.mode(r["pairs"] for r in mine) if mine else 0
            sides = [
                [r["wall_s"] for r in mine if r["layers"] is layers and r["pairs"] == usual]
                for layers in (True, False)
            ]
            if all(sides):
                logs.append(math.log(statistics.median(sides[0]) / statistics.median(sides[1])))
        if len(logs) > 1:
            half = t_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
            middle = statistics.fmean(logs)
            found[mode] = {
                "ratio": round(math.exp(middle), 4),
                "low": round(math.exp(middle - half), 4),
                "high": round(math.exp(middle + half), 4),
                "tasks": len(logs),
            }
    return found


def words(found: dict[str, Any]) -> str:
    return ", ".join(
        f"{mode} {f['ratio']:.3f} [{f['low']:.3f}, {f['high']:.3f}]" for mode, f in found.items()
    )


if __name__ == "__main__":
    main()
