"""Thousands of evaluations in a row: does anything leak, does the last one run like the first?

    python -m benchmarks.soak --device cpu --count 2000 --seconds 3400 --out FILE

Right, wrong, crashing and hanging candidates by turns, no two alike (soak_candidates.py), one of
ten judged as a confirmation is, the others as a search does. After each one: resident memory of the
supervisor and of its zygotes, descriptors, threads, processes, temporary files, memory in use on
the GPU. Run it again with the same FILE to go on; samples are compared within one run, since each
has processes of its own. Ends with code 0 when all is done, every status was as expected, nothing
grew, and the throughput of the last tenth is within 5 % of the first's.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch

from benchmarks.keeping import header
from benchmarks.soak_candidates import candidates, kinds, task
from sandbox.cache import write_text
from sandbox.evaluator import LocalEvaluator
from sandbox.types import EvalConfig, Status

CONFIG = EvalConfig(
    preset="soak",
    baselines=(),
    rounds=4,
    single_share=0.1,
    batch_ms=2.0,
    max_sets=8,
    min_pairs=2,
    max_pairs=2,
    run_timeout_s=1.5,
    load_timeout_s=30.0,
    memory_limit_bytes=4 << 30,
)
SEARCH_BAR = 1.0
"""What a search asks to be beaten."""
TENTHS = 10
LEAST_ROWS = 50
"""Of one run, to say something about leaks."""
MEMORY_GROWTH = 0.05
"""Of resident memory, from a run's first tenth to its last."""
THROUGHPUT_CHANGE = 0.05
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One evaluation, and what was held after it."""

    run: int
    kind: str
    status: str
    expected: str
    seconds: float
    supervisor_mib: int
    zygotes_mib: int
    descriptors: int
    threads: int
    processes: int
    files: int
    """Scratch folders and temporary files of this process."""
    gpu_mib: int
    detail: str = ""


COUNTED = ("descriptors", "threads", "processes", "files")
MEASURED = ("supervisor_mib", "zygotes_mib", "gpu_mib")


class Sampler:
    """Looks at everything an evaluation could leave behind."""

    def __init__(self, device: str, temporary: Path) -> None:
        self._me = psutil.Process()
        self._device = device
        self._temporary = temporary
        self._scratch = Path(os.environ.get("WARPSMITH_SCRATCH", "/var/tmp"))

    def sample(self) -> dict[str, int]:
        children = self._me.children(recursive=True)
        zygotes = self._me.children()
        used = 0
        if self._device == "cuda":
            free, total = torch.cuda.mem_get_info()
            used = total - free
        scratch = self._scratch.glob(f"warpsmith-{os.geteuid()}/{os.getpid()}-*")
        return {
            "supervisor_mib": self._me.memory_info().rss // MIB,
            "zygotes_mib": sum(held(lambda p=p: p.memory_info().rss) for p in zygotes) // MIB,
            "descriptors": self._me.num_fds() + sum(held(p.num_fds) for p in zygotes),
            "threads": threading.active_count(),
            "processes": len(children),
            "files": len(list(scratch)) + len(os.listdir(self._temporary)),
            "gpu_mib": used // MIB,
        }


def held(ask: Callable[[], int]) -> int:
    """By a child; nothing where it has ended since it was listed."""
    try:
        return ask()
    except psutil.NoSuchProcess:
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=550.0, help="stop starting work after")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = load(options.out)
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as temporary:
        tempfile.tempdir = temporary  # so that what is left behind is ours
        evaluator = LocalEvaluator(options.device)
        try:
            soak(evaluator, options, rows, deadline, Path(temporary))
        finally:
            save(options.out, rows, evaluator.facts.environment)
            evaluator.close()
            tempfile.tempdir = None
    findings = judged(rows, len(kinds(options.device)))
    for line in (*table(rows), *findings):
        print(line)
    print(f"{len(rows)} of {options.count} evaluations; {len(findings)} findings")
    sys.exit(bool(findings) or len(rows) < options.count)


def soak(
    evaluator: LocalEvaluator,
    options: argparse.Namespace,
    rows: list[Row],
    deadline: float,
    temporary: Path,
) -> None:
    run = max((row.run for row in rows), default=-1) + 1
    sampler = Sampler(options.device, temporary)
    asked = task(options.device)
    series = candidates(options.device, len(rows), secrets.token_hex(4))
    round_length = len(kinds(options.device))
    for number in range(round_length):  # one round unrecorded: the first of everything
        bar = SEARCH_BAR if number else None
        evaluator.evaluate(asked, next(series)[1], CONFIG, to_beat=bar)
    while len(rows) < options.count and time.monotonic() < deadline:
        kind, candidate = next(series)
        start = time.perf_counter()
        bar = SEARCH_BAR if len(rows) % round_length else None
        found = evaluator.evaluate(asked, candidate, CONFIG, to_beat=bar)
        seconds = time.perf_counter() - start
        as_expected = found.status is kind.expected
        row = Row(
            run=run,
            kind=kind.name,
            status=found.status.value,
            expected=kind.expected.value,
            seconds=round(seconds, 4),
            detail="" if as_expected else found.detail,
            **sampler.sample(),
        )
        rows.append(row)
        if not as_expected:
            print(f"UNEXPECTED {row}", flush=True)
        if len(rows) % 50 == 0:
            save(options.out, rows, evaluator.facts.environment)
            print(f"{len(rows)}: {row}", flush=True)


def judged(rows: Sequence[Row], round_length: int) -> list[str]:
    """What is wrong with these rows, in words; empty where nothing is."""
    found = [
        f"evaluation {number} ({row.kind}): {row.status}, expected {row.expected}: {row.detail}"
        for number, row in enumerate(rows)
        if row.status != row.expected
    ]
    for run in sorted({row.run for row in rows}):
        mine = [row for row in rows if row.run == run]
        if len(mine) >= LEAST_ROWS:
            found += grown(mine, max(len(mine) // TENTHS, round_length))
    if len(rows) >= LEAST_ROWS:
        length = max(len(rows) // TENTHS, round_length)
        change = pace(rows[-length:], rows) / pace(rows[:length], rows) - 1
        if abs(change) > THROUGHPUT_CHANGE:
            found.append(f"the last tenth's throughput differs by {change:+.1%} from the first's")
    return found


def grown(rows: Sequence[Row], length: int) -> list[str]:
    """What one run holds more of in its last tenth than in its first."""
    first, last = rows[:length], rows[-length:]
    found = []
    for name in COUNTED:
        before, after = (max(getattr(row, name) for row in part) for part in (first, last))
        if after > before:
            found.append(f"run {rows[0].run}: {name} grew from {before} to {after}")
    for name in MEASURED:
        before, after = (statistics.median(getattr(r, name) for r in p) for p in (first, last))
        if after > before * (1 + MEMORY_GROWTH):
            found.append(f"run {rows[0].run}: {name} grew from {before:g} to {after:g}")
    return found


def pace(part: Sequence[Row], whole: Sequence[Row]) -> float:
    """Evaluations per second of a part, as if it held the whole's mix of kinds.

    Medians by kind: what lasts longest is a time-out, of fixed length.
    """
    named = {row.kind for row in part}
    mix = [row.kind for row in whole if row.kind in named]
    median = {
        kind: statistics.median(row.seconds for row in part if row.kind == kind) for kind in named
    }
    return len(mix) / sum(median[kind] for kind in mix)


def table(rows: Sequence[Row]) -> list[str]:
    """One line per tenth."""
    lines = [
        "tenth  evaluations/s  supervisor  zygotes MiB  descriptors  processes  files  GPU MiB"
    ]
    length = max(-(-len(rows) // TENTHS), 1)
    for start in range(0, len(rows), length):
        part = rows[start : start + length]
        end = part[-1]
        lines.append(
            f"{start // length:5}  {pace(part, rows):13.3f}  {end.supervisor_mib:10}  "
            f"{end.zygotes_mib:11}  {end.descriptors:11}  {end.processes:9}  {end.files:5}  "
            f"{end.gpu_mib:7}"
        )
    return lines


def load(path: Path) -> list[Row]:
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    return [Row(**dict(zip(record["columns"], row, strict=True))) for row in record["rows"]]


def save(path: Path, rows: Sequence[Row], environment: dict[str, str]) -> None:
    head = {
        **header("soak"),
        "environment": environment,
        "statuses": {s.value: sum(row.status == s for row in rows) for s in Status},
        "columns": list(Row.__dataclass_fields__),
    }
    lines = ",\n".join(json.dumps(list(asdict(row).values())) for row in rows)
    write_text(path, f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
