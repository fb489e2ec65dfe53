"""Seconds to build `load_inline` sources: torch's own call, and ours with each way switched on.

    python -m benchmarks.builds --out benchmarks/results/h200_builds.jsonl --seconds 500
    python -m benchmarks.builds --only "host only" --out builds.jsonl        (no GPU, no nvcc)
    python -m benchmarks.builds --parallel 16 --only "raw pointers" --out builds.jsonl

Every build is of a source that no build before had, but for `cached`. Stock is the call in a fresh
interpreter with an empty extensions folder; ours is the whole of `Builder.build`, its walled
process, the copy of the artefacts and the report included. CPU seconds are those of all processes;
ours include the zygote's start. Rows are appended; the table goes to the standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.candidates.extensions import TEMPLATES, source
from benchmarks.keeping import header
from sandbox.building.build import Builder
from sandbox.building.light import Ways
from sandbox.building.toolchain import toolchain
from sandbox.machine.device import arch_list
from sandbox.types import Candidate, EvalConfig, Language

CONFIG = EvalConfig(build_timeout_s=600.0)
STOCK = """
import sys, time
import torch.utils.cpp_extension as extension
original = extension.load_inline
def timed(*arguments, **options):
    start = time.monotonic()
    try:
        return original(*arguments, **options)
    finally:
        print("SECONDS", time.monotonic() - start)
extension.load_inline = timed
exec(compile(sys.stdin.read().partition("class ModelNew")[0], "candidate.py", "exec"))
"""
PLAIN = Ways(light_headers=False, precompiled=False)
LIGHT = Ways(precompiled=False, side_by_side=False)
BESIDE = Ways(precompiled=False)
WARMING = 2
"""Builds with one set of flags before its precompiled prelude is ready."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=sorted(TEMPLATES), default=sorted(TEMPLATES))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=1, help="builds at a time, each way")
    parser.add_argument("--seconds", type=float, default=500.0, help="stop starting new work after")
    options = parser.parse_args()
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", arch_list() or "")
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    try:
        for name in options.only:
            for way, measure in WAYS.items():
                if time.monotonic() - started > options.seconds:
                    print(f"out of time before {name}, {way}")
                    continue
                found = measure(name, options.repeat, options.parallel)
                about = {"source": name, "way": way, "parallel": options.parallel}
                rows += [about | each for each in found]
                seconds = ", ".join(f"{each['seconds']:.2f} s" for each in found)
                print(f"{name:36} {way:30} {seconds}", flush=True)
    finally:  # one build that fails does not lose those before it
        record = {
            **header("builds"),
            "cores": len(os.sched_getaffinity(0)),
            "toolchain": toolchain(os.environ["TORCH_CUDA_ARCH_LIST"], Ways()),
            "rows": rows,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.write(json.dumps(record) + "\n")
    print(table(rows))


def stock(name: str, repeat: int, parallel: int) -> list[dict[str, float]]:
    """torch's own load_inline."""

    def one(number: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", STOCK],
                input=source(name, number),
                env={**os.environ, "TORCH_EXTENSIONS_DIR": folder},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr[-3000:]}")
        return float(done.stdout.split("SECONDS")[1].split()[0])

    return [measured(one, numbers) for numbers in batches(repeat, parallel)]


def ours(ways: Ways, before: int = 0) -> Callable[[str, int, int], list[dict[str, float]]]:
    """Our builder with an empty cache; `before` other builds of the same kind come first."""

    def run(name: str, repeat: int, parallel: int) -> list[dict[str, float]]:
        found = []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(before):
                builder = Builder(Path(folder), ways)
                build(builder, name, 9000 + number)
                builder.settle()
                builder.close()
            for numbers in batches(repeat, parallel):
                found.append(measured(build, numbers, lambda: Builder(Path(folder), ways), name))
        return found

    return run


def cached(name: str, repeat: int, parallel: int) -> list[dict[str, float]]:
    """The same source again, in another process's builder."""
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder))
        build(builder, name, 1)
        builder.close()
        found = []
        for _ in range(repeat):
            builder = Builder(Path(folder))
            start = time.monotonic()
            build(builder, name, 1)
            found.append({"seconds": time.monotonic() - start, "cpu_s": 0.0})
            builder.close()
    return found


def build(builder: Builder, name: str, number: int) -> float:
    """Seconds of one build; raises RuntimeError where it fails."""
    candidate = Candidate("benchmark", Language.CUDA_INLINE, source(name, number))
    if "cuda_sources" not in candidate.source:
        candidate = Candidate("benchmark", Language.CPP, candidate.source)
    start = time.monotonic()
    report = builder.build(candidate, CONFIG)
    if report.failure is not None or report.artifacts is None:
        raise RuntimeError(f"{name}: {report.log[-2000:]}")
    return time.monotonic() - start


WAYS: dict[str, Callable[[str, int, int], list[dict[str, float]]]] = {
    "stock": stock,
    "ours, full headers": ours(PLAIN),
    "light headers": ours(LIGHT),
    "and nvcc's steps side by side": ours(BESIDE),
    "and precompiled": ours(Ways(), WARMING),
    "cached": cached,
}


def batches(repeat: int, parallel: int) -> Iterator[range]:
    """Numbers of the sources that are built at a time."""
    for first in range(repeat):
        yield range(first * parallel, (first + 1) * parallel)


def measured(
    work: Callable[..., float],
    numbers: range,
    make: Callable[[], Builder] | None = None,
    name: str = "",
) -> dict[str, float]:
    """Seconds until all are built (one: of the build itself), and CPU seconds of all processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    builder = None if make is None else make()
    if builder is not None:
        builder.warm()
    start = time.monotonic()
    with ThreadPoolExecutor(len(numbers)) as pool:
        arguments = [(n,) if builder is None else (builder, name, n) for n in numbers]
        alone = list(pool.map(lambda a: work(*a), arguments))
    seconds = time.monotonic() - start
    if builder is not None:
        builder.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": alone[0] if len(alone) == 1 else seconds, "cpu_s": cpu / len(numbers)}


def table(rows: list[dict[str, Any]]) -> str:
    """Medians as Markdown; the ratio is stock's seconds over this way's."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["source"]][row["way"]].append(row)
    lines = ["| source | way | seconds | CPU s | times stock |", "|---|---|---|---|---|"]
    for name, ways in groups.items():
        for way, found in ways.items():
            seconds = statistics.median(row["seconds"] for row in found)
            cpu = statistics.median(row["cpu_s"] for row in found)
            ratio = ""
            if "stock" in ways:
                ratio = f"{statistics.median(r['seconds'] for r in ways['stock']) / seconds:.1f}"
            lines.append(f"| {name} | {way} | {seconds:.2f} | {cpu:.1f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
