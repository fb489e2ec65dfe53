"""What is asked of a machine before anything is measured on it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sandbox.errors import DeviceError
from sandbox.machine.device import _launch_s, available_bytes
from sandbox.machine.quiet import Quiet
from sandbox.subjects import stand


def test_memory_that_files_occupy_counts_as_available() -> None:
    text = "MemTotal: 64000000 kB\nMemFree:  900000 kB\nMemAvailable: 50000000 kB\n"
    assert available_bytes(text) == 50_000_000 * 1024


def test_without_cupy_there_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"cupy cannot be imported .*: pip install"):
        _launch_s()


def test_workers_are_closed_on_their_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the memory asked for would be another GPU's, and a context would be made there."""
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(stand, "GpuWatch", lambda index: None)
    zygote: Any = SimpleNamespace(device="cuda", device_index=1)
    subject: Any = SimpleNamespace(close=lambda: current.append(-1))
    stand.Stand(zygote, Quiet(same_cores=False)).retire(subject).result()
    assert current == [1, -1]
