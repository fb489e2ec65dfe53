"""What a build made, and its entry in the cache: a report beside files, with a digest of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sandbox.errors import SandboxFault
from sandbox.observation import Failure, FailureKind
from sandbox.walls.folders import ARTIFACTS

REPORT = "report.json"
"""In an entry of the cache: how its build ended, and what its files hold."""


@dataclass(frozen=True)
class BuildReport:
    """What a build made; `failure` is the candidate's fault."""

    seconds: float
    failure: Failure | None = None
    log: str = ""
    artifacts: Path | None = None
    """Folder of numbered `load_inline` results for the run's private copy; None if there are
    none.
    """
    kernels: Path | None = None
    """Triton's cache with what could be compiled ahead; the rest is compiled in the run."""
    cached: bool = False
    included: Mapping[str, str] = field(default_factory=dict)
    """Folders of headers, and what they held (sandbox/building/included.py)."""


def write_report(
    folder: Path, failure: Failure | None, log: str, included: Mapping[str, str] | None = None
) -> None:
    """What a build in this folder came to, with a digest of every file that it made, and what was
    included.
    """
    told = None if failure is None else asdict(failure)
    record = {
        "failure": told,
        "log": log,
        "files": _digests(folder),
        "included": dict(included or {}),
    }
    write_file(folder / REPORT, json.dumps(record).encode())


def read_report(folder: Path) -> BuildReport:
    """Raises ValueError where a file is not what was written: a machine that loses its power may
    keep an entry's name and half of a library, which would be the candidate's crash.
    """
    record = json.loads((folder / REPORT).read_text())
    if record["files"] != _digests(folder):
        raise ValueError(f"{folder}: damaged")
    failure = record["failure"]
    if failure is not None:
        kind, types = FailureKind(failure["kind"]), tuple(failure["types"])
        failure = Failure(**{**failure, "kind": kind, "types": types})
    artifacts, kernels = (folder / name for name in (ARTIFACTS, "kernels"))
    return BuildReport(
        0.0,
        failure,
        record["log"],
        artifacts if artifacts.is_dir() else None,
        kernels if kernels.is_dir() else None,
        cached=True,
        included=record["included"],
    )


def _digests(folder: Path) -> dict[str, str]:
    """Of every file below but the report, by its path there."""
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / REPORT)
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def write_file(path: Path, content: bytes) -> None:
    """Into our cache: what fails here is no fault of the build's."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise SandboxFault(f"{path.parent}: a library cannot be kept ({error.strerror})") from error
