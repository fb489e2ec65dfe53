"""Where a call's time goes, by torch.profiler (Kineto; CUPTI on a GPU), in a worker of its own.

A claim like all else that a candidate's process says, and slowed by being watched: evidence of
what ran, never a figure.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

CALLS = 5
ROWS = 64
CALL = "warpsmith::call"
"""The label around each call: its own time is what lies outside torch's operators."""


def profile(
    device: str, call: Callable[[], Any], synchronize: Callable[[], None]
) -> dict[str, Any]:
    """`rows` of (name, seconds a call), the largest first: kernels and copies on a GPU; on the CPU
    torch's operators and, as CALL, the rest.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    kept = [call()]
    synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as seen:
        for _ in range(CALLS):
            with torch.profiler.record_function(CALL):
                kept.append(call())
        synchronize()
    spent_us = on_device(seen) if device == "cuda" else on_host(seen)
    longest = sorted(spent_us.items(), key=lambda row: -row[1])[:ROWS]
    return {"rows": [[name, us * 1e-6] for name, us in longest if us > 0]}


def on_device(seen: torch.profiler.profile) -> dict[str, float]:
    """Microseconds a call by kernel or copy: the mean, since a device's times are its own."""
    found: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        if event.device_type != DeviceType.CPU and event.key != CALL:
            found[event.key] += event.self_device_time_total / CALLS
    return found


def on_host(seen: torch.profiler.profile) -> dict[str, float]:
    """Microseconds a call by operator: the median call's, since where a busy core's other work
    fell is no property of the candidate.
    """
    outermost = [e for e in seen.events() or () if e.name == CALL and e.cpu_parent is None]
    if len(outermost) != CALLS:  # others bear the label
        return {}
    calls = [self_times(event) for event in outermost]
    names = set().union(*calls)
    return {name: statistics.median(call[name] for call in calls) for name in names}


def self_times(call: FunctionEvent) -> Counter[str]:
    """Microseconds within `call` and what it called, each counted once; a label of the candidate's
    own is no more than an operator.
    """
    found = Counter({CALL: call.self_cpu_time_total})
    waiting = list(call.cpu_children)
    while waiting:
        event = waiting.pop()
        found[f"{event.name} (inner)" if event.name == CALL else event.name] += (
            event.self_cpu_time_total
        )
        waiting += event.cpu_children
    return found
