"""The admission verdicts over KernelBench, compared with what others have published as flawed.

    warpsmith tasks validate kernelbench:PATH:level1 --device cuda --json rows.jsonl --seconds 500
    (again until nothing is left, and for level2 and level3)
    python -m benchmarks.admission rows.jsonl --checkout PATH --out FILE

Nothing runs here: the rows hold the measurements, this puts them beside the lists
(kernelbench.published_flaws.py). Nothing of KernelBench but problem ids is kept.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.keeping import header
from benchmarks.kernelbench_verdicts import version
from kernelbench.admission import read_rows
from kernelbench.published_flaws import PUBLISHED, PublishedList
from sandbox.admission import Admission, Level
from sandbox.records import to_record

KEPT_FIGURES = ("loose", "nulls", "ranges", "ignored_inputs", "ignored_parameters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--checkout", type=Path, help="whose version is recorded")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = {short_id(row): row for path in options.rows for row in read_rows(path)}
    record = {
        "schema_version": 1,
        **header("admission"),
        "checkout": None if options.checkout is None else version(options.checkout),
        "environments": distinct([dict(row.environment) for row in rows.values()]),
        "configs": distinct([row.config_id for row in rows.values()]),
        "verdicts": dict(Counter(row.verdict.value for row in rows.values())),
        "by_level": by_level(rows),
        "lists": [compare(published, rows) for published in PUBLISHED],
        "in_no_list": in_no_list(rows),
        "rows": {name: brief(row) for name, row in rows.items()},
    }
    print(json.dumps({k: v for k, v in record.items() if k != "rows"}, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


def short_id(row: Admission) -> str:
    """`kernelbench/level1/19_ReLU` as `level1/19`."""
    return row.task_id.removeprefix("kernelbench/").partition("_")[0]


def by_level(rows: dict[str, Admission]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for name, row in rows.items():
        counts.setdefault(name.partition("/")[0], Counter())[row.verdict.value] += 1
    return {level: dict(count) for level, count in sorted(counts.items())}


def compare(published: PublishedList, rows: dict[str, Admission]) -> dict[str, Any]:
    """What we say of each problem on the list, grouped by verdict."""
    verdicts: dict[str, list[str]] = {level.value: [] for level in Level}
    absent = []
    for name in sorted(published.ids, key=order):
        if name in rows:
            verdicts[rows[name].verdict.value].append(name)
        else:
            absent.append(name)
    return {
        "list": published.name,
        "source": published.source,
        "criterion": published.criterion,
        "degenerate": published.degenerate,
        "listed": len(published.ids),
        **verdicts,
        "not_validated": absent,
    }


def in_no_list(rows: dict[str, Admission]) -> dict[str, str]:
    """What we refuse to score and nobody has published, with our reason."""
    listed = set().union(*(published.ids for published in PUBLISHED))
    refused = {n: row for n, row in rows.items() if not row.verdict.scored and n not in listed}
    return {name: refused[name].reason for name in sorted(refused, key=order)}


def order(name: str) -> tuple[str, int]:
    level, _, number = name.partition("/")
    return level, int(number) if number.isdigit() else 0


def brief(row: Admission) -> dict[str, Any]:
    """What a reader needs to check a verdict."""
    return {
        "task": row.task_id,
        "verdict": row.verdict.value,
        "remarks": [f"{remark.check}: {remark.detail}" for remark in row.remarks],
        "figures": [
            {
                **{name: to_record(getattr(shape, name)) for name in KEPT_FIGURES},
                "memory": to_record(shape.memory),
                "headroom": {**to_record(shape.headroom), "times": shape.headroom.times},
            }
            for shape in row.figures
        ],
        "seconds": round(row.seconds, 2),
    }


def distinct(values: Sequence[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


if __name__ == "__main__":
    main()
