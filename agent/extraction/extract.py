"""`warpsmith extract`: a user's model becomes a folder of task files, the costliest parts first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.extraction.child import ask
from agent.extraction.model import check_model_file
from agent.extraction.report import Extraction
from kernelbench.suite import load_tasks
from sandbox.errors import ConfigError
from sandbox.records import from_record, to_record

RECORD = "extraction.json"
TIMEOUT_S = 1200.0


@dataclass(frozen=True)
class Extracted:
    """The report and the task files, in its order."""

    extraction: Extraction
    files: tuple[Path, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(path.stem for path in self.files)


def extract(model: Path, folder: Path, device: str, top: int) -> Extracted:
    """Write the `top` costliest regions of the model as task files and `extraction.json`.

    An older extraction in the folder is replaced. Raises ConfigError where the model or the folder
    cannot be used.
    """
    if top < 1:
        raise ConfigError(f"top is {top}; expected at least 1")
    check_model_file(model)
    older = _older(folder)
    request = {"model": str(model.resolve()), "device": device, "top": top}
    reply = ask("agent.extraction.worker", str(model), request, TIMEOUT_S)
    found = from_record(Extraction, reply["extraction"])
    if not reply["sources"]:
        why = next((r.refused for r in found.regions if r.refused), "no operation takes any time")
        raise ConfigError(f"{model}: nothing in it can be a task: {why}")
    for path in (folder / f"{name}.py" for name in reply["sources"]):
        if path.exists() and path not in older:
            raise ConfigError(f"{path}: no extraction wrote it; move it, or use a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in older:
            path.unlink(missing_ok=True)
        files = tuple(_written(folder, name, text) for name, text in reply["sources"].items())
        record = to_record(found) | {"files": [path.name for path in files]}
        (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    for path in files:
        load_tasks(str(path), device)
    return Extracted(found, files)


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def _older(folder: Path) -> list[Path]:
    """Task files that an earlier extraction left; ConfigError where the folder is something
    else's.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; expected a folder")
    if not any(folder.iterdir()):
        return []
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text())
        return [folder / Path(str(name)).name for name in record["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: holds other files; expected a new folder or an older extraction"
        ) from error
