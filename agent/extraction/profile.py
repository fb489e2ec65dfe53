"""Seconds that each operation of a traced module takes, in its place in the whole.

torch.profiler sees every node of the graph as a range of its own: on a GPU the time of the kernels
launched in it, on the CPU the wall time of the range. The profiler costs some microseconds a node,
so shares of very short operations are upper bounds.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.profiler import ProfilerActivity, profile, record_function

from agent.extraction.units import Unit

MARK = "region:"
WARM, LEAST, MOST = 2, 3, 20
"""Runs before measuring, and how many are measured, within SECONDS."""
SECONDS = 5.0


def node_seconds(unit: Unit, device: str) -> dict[fx.Node, float]:
    """Median over several runs of the graph, in seconds per call of the unit."""
    walk = _Marked(unit.traced.graph)

    def run() -> None:
        walk.run(*unit.values, enable_io_processing=False)

    once = latency_s(run, device, most=2)
    runs = _runs(once)
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.no_grad(), profile(activities=activities) as seen:
        for _ in range(runs):
            run()
            synchronise(device)
    taken: dict[str, list[float]] = defaultdict(list)
    for event in seen.events():
        # On a GPU each range appears twice: where it was entered, and on the device's time line.
        if event.name.startswith(MARK) and event.device_type == torch.autograd.DeviceType.CPU:
            busy_us = event.device_time_total if device == "cuda" else event.cpu_time_total
            taken[event.name.removeprefix(MARK)].append(busy_us * 1e-6)
    return {
        node: statistics.median(taken[node.name])
        for node in unit.traced.calls
        if node.name in taken
    }


def latency_s(run: Callable[[], Any], device: str, most: int = MOST) -> float:
    """Median wall time of a call without gradients."""
    with torch.no_grad():
        for _ in range(WARM):
            run()
        synchronise(device)
        begun = time.perf_counter()
        taken: list[float] = []
        while len(taken) < most and (len(taken) < LEAST or time.perf_counter() - begun < SECONDS):
            start = time.perf_counter()
            run()
            synchronise(device)
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _runs(once_s: float) -> int:
    return min(MOST, max(LEAST, int(SECONDS / max(once_s, 1e-6))))


def synchronise(device: str) -> None:
    """Waits for what was launched."""
    if device == "cuda":
        torch.cuda.synchronize()


class _Marked(fx.Interpreter):  # type: ignore[misc]
    """Each operation in a range with the node's name."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(torch.nn.Module(), graph=graph)

    def call_function(self, target: Any, args: Sequence[Any], kwargs: Any) -> Any:
        with record_function(f"{MARK}{self._current.name}"):
            return target(*args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        self._current = n
        return super().run_node(n)
