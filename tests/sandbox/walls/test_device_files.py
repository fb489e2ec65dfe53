"""Which of a host's GPUs a walled process can open."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.walls.devices import own_devices

SHARED = ["nvidia-caps", "nvidia-uvm", "nvidiactl"]


@pytest.mark.parametrize(
    ("minor", "gpus", "left"),
    [
        (0, ["nvidia0", "nvidia1", "nvidia10"], ["nvidia0"]),
        (1, ["nvidia0", "nvidia1", "nvidia10"], ["nvidia1"]),
        (10, ["nvidia0", "nvidia1", "nvidia10"], ["nvidia10"]),
        (0, ["nvidia0"], ["nvidia0"]),
        # NVML does not tell, or of a number that has no file here.
        (None, ["nvidia0", "nvidia1"], ["nvidia0", "nvidia1"]),
        (3, ["nvidia0", "nvidia1"], ["nvidia0", "nvidia1"]),
    ],
)
def test_a_process_opens_its_own_gpu_and_the_driver(
    minor: int | None, gpus: list[str], left: list[str]
) -> None:
    every = [Path("/dev", name) for name in gpus + SHARED]
    assert own_devices(every, minor) == tuple(Path("/dev", name) for name in left + SHARED)
