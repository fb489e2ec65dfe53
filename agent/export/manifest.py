"""`manifest.json` of an exported library: the evidence in short, a hash of every file and its own.

As those of `library.json` they tell damage and careless edits, and are no signature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.export.artefact import (
    Artefact,
    against_best,
    beats_eager,
    decisive,
    state_of,
)
from agent.export.folder import MANIFEST, is_damaged
from agent.export.runtime.machine import machine_of
from agent.export.runtime.records import LibraryError, check_manifest, hash_of
from sandbox.errors import ConfigError
from sandbox.judging.best import best_baseline
from sandbox.records import to_record

SCHEMA_VERSION = 3


def write_manifest(folder: Path, facts: dict[str, Any], artefacts: Sequence[Artefact]) -> Path:
    """Over every file of the folder as it is now."""
    path = folder / MANIFEST
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        **facts,
        "kernels": [_entry(a) for a in artefacts],
        "files": hashes(folder),
    }
    record = json.loads(json.dumps(record))  # as it is read again: keys are words
    path.write_text(json.dumps({**record, "sha256": hash_of(record)}, indent=2) + "\n")
    return path


def read_manifest(folder: Path) -> dict[str, Any]:
    """Raises ConfigError where there is none, or where it or a file that it names was changed."""
    path = folder / MANIFEST
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        told = dict(record["files"])
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder}: no {MANIFEST}; expected what `export --format package` wrote"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if is_damaged(folder):
            raise ConfigError(f"{path}: is damaged ({error}); export the library again") from error
        remedy = "expected what `export --format package` wrote"
        raise ConfigError(f"{path}: cannot be used ({error!r}); {remedy}") from error
    try:
        record = check_manifest(path)
    except LibraryError as error:
        raise ConfigError(str(error)) from error
    found = hashes(folder)
    wrong = sorted(name for name, sha256 in told.items() if found.get(name) != sha256)
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ConfigError(
            f"{folder}: {wrong[0]}{more} missing or not as exported; export the library again"
        )
    return record


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file under the folder but the manifest, by its path there."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files
    }


def _entry(artefact: Artefact) -> dict[str, Any]:
    evaluation = decisive(artefact)
    return {
        "operator": artefact.operator,
        "task_id": artefact.task.id,
        "task_hash": artefact.task.hash,
        "candidate_id": artefact.candidate.id,
        "source_sha256": artefact.source_sha256,
        "language": artefact.candidate.language.value,
        "licence": artefact.licence,
        "precision": evaluation.precision,
        "parameters": evaluation.parameters,
        "autograd": artefact.interface.autograd,
        "shapes": to_record(artefact.interface.shapes),
        "provenance": to_record(artefact.provenance),
        "config_id": artefact.config.id,
        "used": [
            {
                "machine": machine,
                "shape": shape.name,
                "state": state_of(artefact, found, shape),
                "beats_eager": beats_eager(artefact, found, shape),
            }
            for machine, found in artefact.decisive.items()
            for shape in artefact.interface.shapes
        ],
        "findings": [
            {
                "purpose": found.purpose,
                "from": found.checked,
                "status": found.evaluation.status.value,
                "machine": machine_of(found.evaluation.environment),
                "speedup": to_record(found.evaluation.speedup),
                "best_baseline": best_baseline(found.evaluation.baselines)[0],
                "against_best": to_record(against_best(found.evaluation)),
                "operator_ms": found.operator_ms,
                "baselines": to_record(found.evaluation.baselines),
                "environment": dict(found.evaluation.environment),
            }
            for found in artefact.findings
        ],
    }
