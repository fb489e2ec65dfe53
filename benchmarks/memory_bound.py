"""What the time of a memory-bound kernel depends on: the process that calls it, whose memory it
reads, or when.

    python -m benchmarks.memory_bound --out benchmarks/results/memory_bound.json

This process holds two inputs, which it shares by CUDA IPC. Callers, each a process with an input
and an output of its own, add one to their own input and to both of these, by turns and one at a
time, over and over; then others begin in their place. If a caller's figures agree and callers'
differ, it is the process; if those of an input do, it is where that lies; if neither, it is when.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from benchmarks.keeping import header, keep_json

OWN = "own"
UNTIMED = 2
"""Calls before those of a figure."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mib", type=int, default=6144, help="of an input, and of an output")
    parser.add_argument("--callers", type=int, default=4, help="processes at a time")
    parser.add_argument("--generations", type=int, default=3, help="of callers")
    parser.add_argument("--cycles", type=int, default=5, help="of all callers and inputs")
    parser.add_argument("--calls", type=int, default=15, help="of which a figure is the median")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    elements = given.mib << 18
    rows = []
    inputs = {f"shared {n}": torch.rand(elements, device=given.device) for n in range(2)}
    for generation in range(given.generations):
        callers = [Caller(elements, inputs) for _ in range(given.callers)]
        for process in callers:
            process.hear()
        for cycle in range(given.cycles):
            for number, process in enumerate(callers):
                for source in (OWN, *inputs):
                    ms = process.ask((source, given.calls))
                    rows.append((generation * given.callers + number, source, cycle, ms))
        for process in callers:
            process.end()
    record = {
        **header("memory_bound"),
        "environment": environment(given.device),
        "asked": {key: value for key, value in vars(given).items() if key != "out"},
        "explained": explained(rows),
        "columns": ["caller", "input", "cycle", "ms"],
        "rows": rows,
    }
    for key, value in record["explained"].items():
        print(f"{key}: {value}")
    if given.out:
        keep_json(given.out, record)


class Caller:
    """A caller and a pipe to it."""

    def __init__(self, elements: int, inputs: Mapping[str, torch.Tensor]) -> None:
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=caller, args=(theirs, elements, inputs), daemon=True)
        self._process.start()

    def hear(self) -> Any:
        return self._pipe.recv()

    def ask(self, what: Any) -> Any:
        self._pipe.send(what)
        return self.hear()

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


def caller(pipe: Any, elements: int, inputs: Mapping[str, torch.Tensor]) -> None:
    """Figures for whoever asks through the pipe, until it says None."""
    (device,) = {held.device for held in inputs.values()}
    sources = {OWN: torch.rand(elements, device=device), **inputs}
    output = torch.empty(elements, device=device)
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        source, calls = asked
        timed(sources[source], output, UNTIMED)
        pipe.send(round(statistics.median(timed(sources[source], output, calls)), 5))


def timed(source: torch.Tensor, output: torch.Tensor, calls: int) -> list[float]:
    """Milliseconds of each call."""
    if source.device.type == "cpu":
        marks = [time.perf_counter()]
        for _ in range(calls):
            torch.add(source, 1.0, out=output)
            marks.append(time.perf_counter())
        return [1e3 * (b - a) for a, b in itertools.pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        torch.add(source, 1.0, out=output)
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def explained(rows: Sequence[tuple[int, str, int, float]]) -> dict[str, float]:
    """Per cent of its mean by which a figure scatters (standard deviation), in all and about the
    mean of what it shares with others.
    """
    shared = {
        "in all": lambda row: 0,
        "within a caller": lambda row: row[0],
        "within an input": lambda row: (row[1], row[0] if row[1] == OWN else -1),
        "within a caller and input": lambda row: row[:2],
        "within a cycle": lambda row: (row[0], row[2]),
    }
    mean = statistics.fmean(row[3] for row in rows)
    found = {}
    for name, key in shared.items():
        groups: dict[Any, list[float]] = {}
        for row in rows:
            groups.setdefault(key(row), []).append(row[3])
        found[name] = round(100 * math.sqrt(_residual(groups.values()) / len(rows)) / mean, 3)
    return found


def _residual(groups: Iterable[Sequence[float]]) -> float:
    return sum((x - statistics.fmean(group)) ** 2 for group in groups for x in group)


def environment(device: str) -> dict[str, str]:
    gpu = {"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}
    return {"torch": torch.__version__, **gpu}


if __name__ == "__main__":
    main()
