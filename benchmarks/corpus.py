"""The corpus of exploits and honest twins, judged again and again: who gets a wrong verdict?

    python -m benchmarks.corpus --device cuda --repetitions 1 --honest-repetitions 5 --out FILE

Run it from the root of a checkout; it reads tests/exploits. Entries of one task follow each other.
What is not done within --seconds is counted; --only names files or entries, to go on with them.
--ahead judges so many side by side, as a search does, and --plain each without anything that makes
verdicts cheap (tests/exploits/plain.py): they must be the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.keeping import header, keep_json, stop_cleanly
from sandbox.evaluator import LocalEvaluator
from sandbox.types import SCHEMA_VERSION
from tests.exploits.corpus import Entry, Kind, load_corpus
from tests.exploits.plain import plain_evaluator

KEPT_EVERY = 20
"""Verdicts between two writes of the record."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--repetitions", type=int, default=1, help="of every exploit")
    parser.add_argument("--honest-repetitions", type=int, default=5, help="of every honest twin")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no evaluation after")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="prefixes of names")
    parser.add_argument("--ahead", type=int, default=1, help="entries under way at once")
    parser.add_argument("--plain", action="store_true", help="an evaluator each, nothing kept")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stop_cleanly()
    chosen = [
        row
        for row in load_corpus()
        if options.device in row[2].devices
        and (not options.only or row[0].startswith(tuple(options.only)))
    ]
    started = time.monotonic()
    if options.device == "cpu":
        # As in the tests: OpenMP teams of two spin against each other on a busy machine.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    evaluator = LocalEvaluator(options.device)
    rows: list[dict[str, Any]] = []
    record = {
        "schema_version": SCHEMA_VERSION,
        **header("corpus"),
        "environment": dict(evaluator.facts.environment),
        "not_started": [name for name, _, _ in chosen],
        "rows": rows,
    }
    times: dict[Kind, int] = {
        "exploit": options.repetitions,
        "honest": options.honest_repetitions,
    }
    jobs = [(*row, number) for row in chosen for number in range(times[row[1]])]

    done = Counter[str]()

    def one(job: tuple[str, Kind, Entry, int]) -> dict[str, Any] | None:
        name, kind, entry, number = job
        if time.monotonic() - started > options.seconds:
            return None
        if not options.plain:
            return judge(evaluator, options.device, *job)
        with TemporaryDirectory() as folder, plain_evaluator(options.device, Path(folder)) as own:
            return judge(own, options.device, name, kind, replace(entry, confirm=True), number)

    try:
        with ThreadPoolExecutor(options.ahead) as pool:
            for row in filter(None, pool.map(one, jobs)):
                rows.append(row)
                print(line(row), flush=True)
                done[row["name"]] += 1
                record["not_started"] = [n for n, kind, _ in chosen if done[n] < times[kind]]
                if options.out and len(rows) % KEPT_EVERY == 0:
                    with evaluator._quiet.noise():  # not while something is timed
                        keep_json(options.out, record)
    finally:
        if options.out:
            keep_json(options.out, record)
        evaluator.close()
    sys.exit(summary(record, time.monotonic() - started))


def judge(
    evaluator: LocalEvaluator, device: str, name: str, kind: Kind, entry: Entry, repetition: int
) -> dict[str, Any]:
    """One evaluation as a row of the record."""
    begin = time.monotonic()
    *searched, found = entry.judgements(evaluator, device)
    return {
        "name": name,
        "kind": kind,
        "task": found.task_id,
        "language": entry.language.value,
        "candidate": found.candidate_id,
        "repetition": repetition,
        "expected": entry.expected.value,
        "got": found.status.value,
        "wrong": entry.wrong(found),
        "detail": found.detail,
        "searched": [str(one.speedup) for one in searched],
        "speedup": None if found.speedup is None else found.speedup.value,
        "low": None if found.speedup is None else found.speedup.low,
        "wall_s": round(time.monotonic() - begin, 3),
    }


def line(row: dict[str, Any]) -> str:
    speedup = f"{row['speedup']:6.2f}x" if row["speedup"] else " " * 7
    said = f"  WRONG: {row['wrong']}" if row["wrong"] else ""
    return f"{row['name']:60} {row['got']:14} {speedup} {row['wall_s']:6.1f} s{said}"


def summary(record: dict[str, Any], seconds: float) -> bool:
    """Print the counts; True where a verdict was wrong or there was none."""
    rows = record["rows"]
    wrong = [row for row in rows if row["wrong"]]
    for kind in ("exploit", "honest"):
        of_kind = [row for row in rows if row["kind"] == kind]
        right = sum(not row["wrong"] for row in of_kind)
        entries = len({row["name"] for row in of_kind})
        print(f"{kind}: {right} of {len(of_kind)} verdicts right, {entries} entries")
    passed = [row for row in rows if row["kind"] == "exploit" and row["searched"]]
    print(f"{len(passed)} exploits were called faster by a search, and judged again:")
    for row in passed:
        print(f"  {row['name']}: {row['searched'][0]}, then {row['got']}")
    for row in wrong:
        print(f"WRONG {row['name']}: {row['wrong']}")
    print(f"{len(record['not_started'])} entries not done; {seconds:.0f} s")
    return bool(wrong) or not rows


if __name__ == "__main__":
    main()
