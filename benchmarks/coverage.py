"""For which tasks the built-in search has a template, and why not for the others.

    python -m benchmarks.coverage kernelbench:PATH:level1 kernelbench:PATH:level2 --out FILE

References are traced, nothing runs: it needs no GPU, also for `--device cuda`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.features.proposer import FeatureProposer
from benchmarks.keeping import header, keep_json, stop_cleanly
from kernelbench.suite import load_suite, suite_version
from sandbox.graph import trace_ahead
from sandbox.types import Task

AT_ONCE = 16
"""Tasks that are traced in one go."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suite", nargs="+", help="as for --suite of `warpsmith bench`")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stop_cleanly()
    tasks = load_suite(options.suite, options.device)
    reasons = dict(left_out(tasks))
    by_reason: dict[str, list[str]] = {}
    for task_id, reason in reasons.items():
        by_reason.setdefault(reason, []).append(task_id)
    for reason, ids in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        print(f"{len(ids):4}  {reason}: {', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''}")
    print(f"{len(tasks) - len(reasons)} of {len(tasks)} tasks have a template")
    if options.out:
        versions = sorted({suite_version(spec) or "" for spec in options.suite} - {""})
        counts = {"tasks": len(tasks), "covered": len(tasks) - len(reasons)}
        record = {**header("coverage"), "versions": versions, **counts, "left_out": by_reason}
        keep_json(options.out, record)


def left_out(tasks: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """Tasks without a template, each with the reason."""
    proposer = FeatureProposer()
    for first in range(0, len(tasks), AT_ONCE):
        some = tasks[first : first + AT_ONCE]
        trace_ahead(some)
        for task in some:
            if (reason := proposer.unsupported(task)) is not None:
                yield task.id, reason


if __name__ == "__main__":
    main()
