"""Libraries that a kernel compiled for itself, kept between processes with their hashes.

A library that was cut short kills the process that maps it, and one of another CPU the process
that runs it: neither can be caught, so both are looked for before anything is loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from agent.export.runtime.machine import cpu_name
from agent.export.runtime.records import Kernel, LibraryError

logger = logging.getLogger(__name__)

SEAL = "libraries.json"
ELSEWHERE = ("cuda", "triton")
"""Languages whose kernels NVRTC, or Triton in a folder of its own, compiles."""


def build_folder(package: str, kernel: Kernel) -> Path | None:
    """Of one source, one torch and one kind of CPU; None for one that torch does not compile.

    Raises LibraryError where it cannot be made.
    """
    if kernel.language in ELSEWHERE:
        return None
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cpu = hashlib.sha256(cpu_name().encode()).hexdigest()[:8]
    folder = Path(home) / package / f"{kernel.sha256[:16]}-torch{torch.__version__}-{cpu}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "XDG_CACHE_HOME names a folder to compile in that can be written"
        raise LibraryError(f"{folder} cannot be made ({error.strerror}): {remedy}") from error
    return folder


@contextmanager
def sealed(folder: Path) -> Iterator[None]:
    """Around an import that may compile: one process at a time, on whole libraries or none."""
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = hashes(folder)
        if found and found != _known(folder):
            logger.warning("%s: damaged or unfinished; compiling it again", folder)
            shutil.rmtree(folder)
            folder.mkdir()
        try:
            yield
            found = hashes(folder)
            if found != _known(folder):
                (folder / SEAL).write_text(json.dumps(found))
        finally:
            # Closing it does not, where a process was forked meanwhile and has it open too.
            fcntl.flock(lock, fcntl.LOCK_UN)


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every shared library below the folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.so"))
    }


def _known(folder: Path) -> dict[str, str]:
    try:
        known: dict[str, str] = json.loads((folder / SEAL).read_text())
    except (OSError, ValueError):
        return {}
    return known
