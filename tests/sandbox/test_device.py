"""What is asked of a machine before anything is measured on it."""

from __future__ import annotations

from sandbox.device import available_bytes


def test_memory_that_files_occupy_counts_as_available() -> None:
    text = "MemTotal: 64000000 kB\nMemFree:  900000 kB\nMemAvailable: 50000000 kB\n"
    assert available_bytes(text) == 50_000_000 * 1024
