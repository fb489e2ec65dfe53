"""The name of the machine a figure belongs to: the GPU and its architecture, or the CPU and the
number of cores that the process may use.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import torch


@functools.cache
def machine(device_type: str, index: int = 0) -> str:
    """Of tensors on this device, here; what `machine_of` made of the campaign's environment."""
    if device_type == "cuda":
        major, minor = torch.cuda.get_device_capability(index)
        return f"{torch.cuda.get_device_name(index)} sm_{major}{minor}"
    if device_type == "cpu":
        return f"{cpu_name()} x{len(os.sched_getaffinity(0))}"
    return device_type


def machine_of(environment: Mapping[str, str]) -> str:
    """From the environment that an evaluation recorded; `unknown` where it does not say."""
    if environment.get("device") == "cuda":
        return f"{environment.get('gpu', 'unknown')} {environment.get('arch', 'unknown')}"
    if "cpu" in environment:
        return f"{environment['cpu']} x{environment.get('threads', '?')}"
    return "unknown"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
