"""Right and wrong hand-written kernels on real KernelBench problems, and the verdicts they get.

    python -m benchmarks.kernelbench_verdicts --checkout PATH --seconds 300 --out FILE

PATH is a checkout of KernelBench; nothing of it is kept here. Every probe (benchmarks/candidates)
has the status it must get; a row whose status is another one counts as a failure of ours.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.candidates.catalogue import probes
from benchmarks.candidates.probe import Probe
from benchmarks.keeping import header, keep_json, stop_cleanly
from kernelbench.checkout import checkout_version
from kernelbench.suite import load_tasks
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Task

CONFIG = EvalConfig(
    preset="kernelbench",
    torch_default_precision=True,
    baselines=(),
    rounds=4,
    min_pairs=2,
    max_pairs=2,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300.0, help="stop starting new work after")
    parser.add_argument("--only", nargs="+", metavar="level1/19", help="these problems alone")
    parser.add_argument(
        "--fresh", action="store_true", help="a new evaluator per problem: frees device memory"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stop_cleanly()
    chosen = [p for p in probes() if not options.only or p.problem in options.only]
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    evaluator = LocalEvaluator("cuda")
    record = {
        **header("kernelbench_verdicts"),
        "checkout": version(options.checkout),
        "config": CONFIG.__dict__,
        "environment": evaluator.facts.environment,
        "rows": rows,
    }
    try:
        for number, (task, group) in enumerate(by_task(chosen, options.checkout)):
            if options.fresh and number:
                evaluator.close()
                evaluator = LocalEvaluator("cuda")
            for probe in group:
                if time.monotonic() - started < options.seconds:
                    rows.append(judge(evaluator, task, probe))
                    print(line(rows[-1]), flush=True)
                    if options.out:
                        keep_json(options.out, record)
    finally:
        evaluator.close()
    failed = [row for row in rows if not row["ok"]]
    print(
        f"{len(rows) - len(failed)} of {len(rows)} verdicts as expected; "
        f"{len(chosen) - len(rows)} probes not started; {time.monotonic() - started:.0f} s"
    )
    for row in failed:
        print(f"UNEXPECTED {line(row)}\n  {row['detail']}")
    sys.exit(bool(failed))


def by_task(chosen: list[Probe], checkout: Path) -> Iterator[tuple[Task, list[Probe]]]:
    for problem, group in groupby(chosen, key=lambda probe: probe.problem):
        yield load_tasks(f"kernelbench:{checkout}:{problem}", "cuda")[0], list(group)


def version(checkout: Path) -> str | None:
    """The checkout's commit, from git or from a file COMMIT beside an extracted copy."""
    note = checkout / "COMMIT"
    return note.read_text().strip() if note.is_file() else checkout_version(checkout)


def judge(evaluator: LocalEvaluator, task: Task, probe: Probe) -> dict[str, Any]:
    """One row: what the probe must get and what it got."""
    begin = time.monotonic()
    candidate = Candidate(task.id, probe.language, probe.source)
    found = evaluator.evaluate(task, candidate, CONFIG)
    timing = found.timing
    return {
        "task": task.id,
        "language": probe.language.value,
        "variant": probe.variant,
        "expected": probe.expected.value,
        "got": found.status.value,
        "ok": found.status is probe.expected,
        "speedup": timing.speedup.value if timing else None,
        "reference_ms": timing.reference_ms if timing else None,
        "candidate_ms": timing.candidate_ms if timing else None,
        "sets": timing.sets if timing else None,
        "cases": len(found.cases),
        "precision": found.precision,
        "parameters": found.parameters,
        "detail": found.detail,
        "candidate": candidate.id,
        "wall_s": time.monotonic() - begin,
        "seconds": dict(found.seconds),
    }


def line(row: dict[str, Any]) -> str:
    speedup = f"{row['speedup']:7.3f}x" if row["speedup"] else " " * 8
    task = row["task"].removeprefix("kernelbench/")[:30]
    return (
        f"{task:30} {row['language']:11} {row['variant']:26} {row['expected']:14} "
        f"{row['got']:17} {'ok' if row['ok'] else 'NO':2} {speedup} {row['wall_s']:6.1f} s"
    )


if __name__ == "__main__":
    main()
