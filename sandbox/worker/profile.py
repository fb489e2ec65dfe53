"""Where a call's time goes, by torch.profiler (Kineto; CUPTI on a GPU), in a worker of its own.

A claim like all else that a candidate's process says, and slowed by being watched: evidence of
what ran, never a figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType

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
    rows = []
    for event in seen.key_averages():
        on_device = event.device_type != DeviceType.CPU
        if on_device != (device == "cuda") or (on_device and event.key == CALL):
            continue
        spent_us = event.self_device_time_total if on_device else event.self_cpu_time_total
        if spent_us > 0:
            rows.append([event.key, spent_us * 1e-6 / CALLS])
    rows.sort(key=lambda row: -row[1])
    return {"rows": rows[:ROWS]}
