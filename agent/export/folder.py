"""What an export may replace: nothing, or an older export of its own format; and how it does so.

Told by what `manifest.json` holds, since other tools have files of that name. Whether files beside
the manifest are still as exported is not looked at: that is `read_manifest`'s.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sandbox.cleanup import on_failure
from sandbox.errors import ConfigError

MANIFEST = "manifest.json"
KEYS = {
    "modelnew": {"run"},
    "package": {"package", "version", "left_out", "files"},
    "kernels": {"repository", "version", "left_out", "without_layer", "files"},
    "flashinfer": {"dataset", "left_out", "files"},
    "kernelbench": {"left_out"},
}
"""What each format's manifest has held since its first version, beside `schema_version` and
`kernels`. KernelBench's is last: the libraries' hold its keys too."""
BEGINS = '{\n  "schema_version": '
"""What the manifest of every export begins with, by which one that was cut short is still known."""
STAGE = ".export-"
"""Begins the name of the folder in which an export is written; one that was killed leaves it."""
ENTRY = {"task_id", "candidate_id"}
"""Of every kernel in any of them."""


def check_folder(folder: Path, format: str) -> None:
    """Raises ConfigError where an export of this format would replace something else."""
    try:
        found = _in_the_way(folder, format)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read ({error.strerror})") from error
    if found is not None:
        remedy = f"a new or empty folder, or an older export of --format {format}"
        raise ConfigError(f"{folder}: {found}; expected {remedy}")


def check_writable(folder: Path) -> None:
    """Raises ConfigError where an export that is made at length could not take its place."""
    try:
        with staged(folder):
            pass
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error


@contextmanager
def staged(folder: Path, owned: Sequence[str] = ()) -> Iterator[Path]:
    """Where to write an export, whose files take their places once all are there, the manifest
    last: of these `owned` folders nothing older stays. If the block raises nothing has changed.
    """
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{STAGE}*"):
        shutil.rmtree(left, ignore_errors=True)
    undo = partial(_discard, folder) if new else lambda: None
    with on_failure(undo), tempfile.TemporaryDirectory(prefix=STAGE, dir=folder) as stage:
        yield Path(stage)
        for name in owned:
            shutil.rmtree(folder / name, ignore_errors=True)
        for made in sorted(Path(stage).iterdir(), key=lambda path: path.name == MANIFEST):
            made.replace(folder / made.name)


def _discard(folder: Path) -> None:
    with suppress(OSError):  # somebody put something there since
        folder.rmdir()


def format_of(folder: Path) -> str | None:
    """The format of the export that the folder's manifest is of; None where it is of none."""
    try:
        record = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("schema_version"), int):
        return None
    kernels = record.get("kernels")
    if not isinstance(kernels, list) or not all(map(_is_entry, kernels)):
        return None
    return next((name for name, keys in KEYS.items() if keys <= record.keys()), None)


def is_damaged(folder: Path) -> bool:
    """Whether the folder's manifest is what is left of an export's: it begins as one, and is no
    JSON. Of an empty file all is lost.
    """
    try:
        text = (folder / MANIFEST).read_text(errors="replace")
    except OSError:
        return False
    if text[: len(BEGINS)] != BEGINS[: len(text)]:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False


def _in_the_way(folder: Path, format: str) -> str | None:
    if not folder.exists():
        return None
    if not folder.is_dir():
        return "is a file"
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith(STAGE))
    if not names:
        return None
    if MANIFEST not in names:
        return f"holds other files, such as {names[0]}"
    found = format_of(folder)
    if found is None and is_damaged(folder):
        return f"holds a damaged {MANIFEST}"
    if found is None:
        return f"holds a {MANIFEST} that no export wrote"
    return None if found == format else f"holds an export of --format {found}"


def _is_entry(kernel: Any) -> bool:
    return isinstance(kernel, dict) and kernel.keys() >= ENTRY
