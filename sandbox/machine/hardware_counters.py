"""Hardware counters that a profiled worker is asked for, in Nsight Compute's names, with words.

Pure functions of what the worker claims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    words: str
    scale: float = 1.0
    """From the metric's own unit to the one that is shown."""
    unit: str = "%"


TIME = "gpu__time_duration.sum"
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
METRICS: Mapping[str, Metric] = {
    TIME: Metric("time of a call's kernels, watched", 1e-3, "us"),
    "dram__bytes_read.sum": Metric("read from DRAM", 1e-6, "MB"),
    "dram__bytes_write.sum": Metric("written to DRAM", 1e-6, "MB"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": Metric("DRAM throughput of its peak"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": Metric("SM throughput of its peak"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": Metric("tensor cores busy"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": Metric("achieved occupancy"),
    "smsp__issue_active.avg.pct_of_peak_sustained_active": Metric("issue slots busy"),
    "lts__t_sector_hit_rate.pct": Metric("L2 hits"),
    "l1tex__t_sector_hit_rate.pct": Metric("L1 hits"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": Metric(
        "bank conflicts in shared memory", 1.0, ""
    ),
    STALL.format("long_scoreboard"): Metric("warps waiting for memory, an issue", 1.0, ""),
    STALL.format("short_scoreboard"): Metric("waiting for shared memory, an issue", 1.0, ""),
    STALL.format("barrier"): Metric("waiting at barriers, an issue", 1.0, ""),
    STALL.format("math_pipe_throttle"): Metric("waiting for arithmetic, an issue", 1.0, ""),
}
"""Of the call as a whole. A chip may lack some."""
MOST = 1e18


def values(claim: Mapping[str, object]) -> dict[str, float]:
    """What a worker claims, as far as it has the form of a counter."""
    found = claim.get("values")
    if not isinstance(found, dict):
        return {}
    told = {name: found[name] for name in METRICS if type(found.get(name)) is float}
    return {name: value for name, value in told.items() if 0 <= value < MOST}


def facts(counters: Mapping[str, float]) -> list[str]:
    """One line a counter, each beginning with `counter `."""
    return [
        f"counter {name}: {metric.words} {counters[name] * metric.scale:.4g} {metric.unit}".rstrip()
        for name, metric in METRICS.items()
        if name in counters
    ]
