"""The GPUs' device files, and which of them a walled process can open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sandbox.walls import folders, landlock, privileges


def gpu_devices() -> tuple[Path, ...]:
    """The NVIDIA driver's: nvidia0, nvidiactl, nvidia-uvm, nvidia-caps and so on."""
    return tuple(sorted(Path("/dev").glob("nvidia*")))


def own_devices(every: Sequence[Path], minor: int | None) -> tuple[Path, ...]:
    """Without those of other GPUs than the one of this minor number; all where it has no file."""
    own = f"nvidia{minor}"
    if own not in (path.name for path in every):
        return tuple(every)
    return tuple(path for path in every if path.name == own or not _of_one_gpu(path))


def keep_to(devices: Sequence[Path]) -> None:
    """Leave this process and its later children all files to read, /tmp and /dev/shm to write and
    these devices alone to use, as behind the walls. Raises OSError where there is no Landlock.
    """
    privileges.no_new_privileges()
    usable = [*folders.DEVICES, Path(f"/proc/{os.getpid()}/task"), *devices]
    landlock.restrict([Path("/")], folders.PRIVATE, usable, landlock.abi())


def _of_one_gpu(path: Path) -> bool:
    return path.name.removeprefix("nvidia").isdigit()
