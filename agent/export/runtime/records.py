"""`library.json`, read and checked: operators, their kernels, and where each kernel was measured.

Hashes tell damage and careless edits. They are no signature: who can replace a file can replace
its hash.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
LIBRARY = "library.json"
UNSEALED = 2
"""The last schema of an exported folder's `manifest.json` without a hash of its own."""


class LibraryError(Exception):
    """An installed library that cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Binary:
    """A device source compiled ahead of time for one architecture."""

    source: str
    """`raw.source_key` of the source."""
    arch: str
    file: str
    sha256: str
    symbols: dict[str, str]
    """By name expression."""


@dataclass(frozen=True)
class Kernel:
    """One candidate's source file."""

    id: str
    file: str
    sha256: str
    language: str
    match: str
    """How its parameters correspond to the reference's: none, name, subset, order."""
    binding: str = "cupy"
    """Of a `cuda` kernel: `driver` where runtime.raw can stand for cupy."""
    binaries: tuple[Binary, ...] = ()
    ordered: bool = False
    """Whether it keeps something between calls, which therefore follow each other."""
    repeats: bool = False
    """Whether its text leaves no doubt that equal calls have equal results, bit for bit."""


@dataclass(frozen=True)
class Row:
    """One signature on one machine, and what was found there."""

    kernel: str
    machine: str
    signature: str
    shape: str
    """The signature for readers."""
    state: str
    """`active`, or why the kernel is not used here."""
    speedup: tuple[float, float, float] | None
    """Value, low and high, against eager."""
    best_baseline: str
    against_best: tuple[float, float, float] | None
    precision: str
    checked: str
    """Where the figure comes from: `campaign RUN` or `revalidated DATE`."""
    beats_eager: bool = False
    """Whether the kernel may run where it need be faster than eager alone."""

    @property
    def active(self) -> bool:
        return self.state == "active"


@dataclass(frozen=True)
class Operator:
    """One reference and the kernels that stand for it."""

    name: str
    namespace: str
    task_id: str
    dtype: str
    inputs: tuple[tuple[str, str], ...]
    """(name, `Tensor`, `int`, `float` or `bool`) of each argument of forward."""
    state: tuple[str, ...]
    """The reference's parameters, then its buffers."""
    init: str
    """JSON of the constructor's arguments that were measured."""
    outputs: int | None
    """How many tensors forward returns in a tuple; None for one tensor by itself."""
    autograd: str
    """`recompute`, or `none` for inference only."""
    reference: str
    reference_sha256: str
    kernels: tuple[Kernel, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Library:
    package: str
    version: str
    operators: tuple[Operator, ...]
    files: dict[str, str]
    """Every other file of the package and its SHA-256."""
    prefix: str
    """Of the environment's switches: the name that the user gave the library."""


def seal(record: dict[str, Any]) -> str:
    """The text of library.json: the record with its own hash."""
    return json.dumps({**record, "sha256": hash_of(record)}, indent=1, sort_keys=True) + "\n"


def check_manifest(path: Path) -> dict[str, Any]:
    """The manifest of an exported folder; raises LibraryError where it was changed.

    Those before UNSEALED + 1 have no hash of their own, and are taken as they are: the hashes of
    the files still hold, and what checks a library again writes its manifest anew.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        version, told = record["schema_version"], record.pop("sha256", None)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise LibraryError(f"{path} is missing or damaged ({error}): export it again") from error
    if told is None and isinstance(version, int) and version <= UNSEALED:
        return record
    if told != hash_of(record):
        raise LibraryError(f"{path} was changed after it was written: export it again")
    return record


def read_library(folder: Path) -> Library:
    """Raises LibraryError where the file is missing, cut short or changed."""
    path = folder / LIBRARY
    try:
        record = json.loads(path.read_text())
        told = record.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise LibraryError(f"{path} is missing or damaged ({error}): install it again") from error
    if record.get("schema_version") != SCHEMA_VERSION:
        raise LibraryError(f"{path}: schema {record.get('schema_version')}, not {SCHEMA_VERSION}")
    if told != hash_of(record):
        raise LibraryError(f"{path} was changed after it was written: install it again")
    operators = tuple(map(_operator, record["operators"]))
    package = record["package"]
    prefix = record.get("prefix", package)
    return Library(package, record["version"], operators, record["files"], prefix)


def checked_source(folder: Path, file: str, sha256: str) -> str:
    """Text of a source file whose hash is the recorded one; raises LibraryError."""
    return checked_bytes(folder, file, sha256).decode()


def checked_bytes(folder: Path, file: str, sha256: str) -> bytes:
    """The same for a file that is no text."""
    try:
        data = (folder / file).read_bytes()
    except OSError as error:
        raise LibraryError(f"{file} cannot be read ({error.strerror})") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise LibraryError(f"{file} is not the file that was measured (its hash differs)")
    return data


def _operator(record: dict[str, Any]) -> Operator:
    kernels = tuple(map(_kernel, record["kernels"]))
    rows = tuple(_row(r) for r in record["rows"])
    inputs = tuple((name, kind) for name, kind in record["inputs"])
    plain = {**record, "kernels": kernels, "rows": rows, "inputs": inputs}
    return Operator(**{**plain, "state": tuple(record["state"])})


def _kernel(record: dict[str, Any]) -> Kernel:
    binaries = tuple(Binary(**binary) for binary in record.get("binaries", ()))
    return Kernel(**{**record, "binaries": binaries})


def _row(record: dict[str, Any]) -> Row:
    triples = {k: record[k] and tuple(record[k]) for k in ("speedup", "against_best")}
    return Row(**{**record, **triples})


def hash_of(record: dict[str, Any]) -> str:
    """Of all that it holds, however it is written down."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
