"""Winners as files: one stand-alone `ModelNew` per task and a manifest that says what was proven.

The candidate's own source under a header. Not here: conversion of `cuda` candidates to
`load_inline`, the only form KernelBench can run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.export.folder import MANIFEST, check_folder, staged
from agent.journals.journal import Journal
from agent.journals.outcome import TaskReport, reports
from sandbox.errors import ConfigError
from sandbox.records import to_record
from sandbox.types import Candidate, Evaluation

SCHEMA_VERSION = 1
OPENING = "# Task:        {task_id} (defines ModelNew with the interface of its Model)\n"
"""What tells a file that was written here from one of the user's."""


def export_run(run_dir: Path, out_dir: Path) -> list[Path]:
    """Write every win of a run, best per task; returns the files, the manifest last.

    A win passed, and its interval lies above eager and the task's noise; where a confirmation was
    measured, that one decides, and must agree with the search. Raises ConfigError if the folder
    cannot be written, or holds something else.
    """
    return _write_all(_writable(run_dir, out_dir), run_dir, out_dir)


def export_runs(runs: Sequence[Path], out_dir: Path) -> list[Path]:
    """`export_run` of one run, or of several into a folder each; of all of them or of none."""
    places = list(zip(runs, folders_of(runs, out_dir), strict=True))
    winners = [_writable(run, folder) for run, folder in places]
    return [
        path
        for found, (run, folder) in zip(winners, places, strict=True)
        for path in _write_all(found, run, folder)
    ]


def folders_of(runs: Sequence[Path], out_dir: Path) -> list[Path]:
    """Where each run's kernels go; raises ConfigError where two runs have one name."""
    if len(runs) == 1:
        return [out_dir]
    names: dict[str, Path] = {}
    for run in runs:
        if names.setdefault(run.name, run) is not run:
            raise ConfigError(f"{names[run.name]} and {run} have one name: export them apart")
    return [out_dir / run.name for run in runs]


def file_name(task_id: str) -> str:
    """`builtin/softmax` becomes `builtin__softmax.py`."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", task_id.replace("/", "__")) + ".py"


def _writable(run_dir: Path, out_dir: Path) -> list[TaskReport]:
    """The run's wins; raises ConfigError where one of their files would replace something else."""
    check_folder(out_dir, "modelnew")
    with Journal(run_dir, read_only=True) as journal:
        winners = [r for r in reports(journal) if r.exportable]
    for task_id in (r.task_id for r in winners):
        path = out_dir / file_name(task_id)
        if path.exists() and not _is_ours(path, task_id):
            raise ConfigError(f"{path}: no export wrote it; move it, or export to a new folder")
    return winners


def _is_ours(path: Path, task_id: str) -> bool:
    """Not told by the manifest: one folder may have had the exports of several runs."""
    try:
        return path.read_text(errors="replace").startswith(OPENING.format(task_id=task_id))
    except OSError:
        return False


def _write_all(winners: Sequence[TaskReport], run_dir: Path, out_dir: Path) -> list[Path]:
    try:
        with staged(out_dir) as stage:
            entries = [_write(report, run_dir, stage) for report in winners]
            record = {"schema_version": SCHEMA_VERSION, "run": run_dir.name, "kernels": entries}
            (stage / MANIFEST).write_text(json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{out_dir}: cannot be written ({error.strerror})") from error
    return [*(out_dir / entry["file"] for entry in entries), out_dir / MANIFEST]


def header(candidate: Candidate, figure: Evaluation, run_dir: Path) -> str:
    """Comment lines that a reader of the file alone needs."""
    environment = ", ".join(f"{k} {v}" for k, v in sorted(figure.environment.items()))
    lines = (
        f"Candidate:   {candidate.id}, {candidate.language.value}",
        f"Speedup:     {figure.speedup} against eager PyTorch",
        f"Environment: {environment or 'unknown'}",
        "Limits:      inputs like those that were measured; no gradients, no check, no fallback",
        f"Made by:     warpsmith optimize --name {run_dir.name}",
        "Check it:    warpsmith evaluate TASK THIS_FILE",
    )
    opening = OPENING.format(task_id=candidate.task_id)
    return opening + "".join(f"# {line}\n" for line in lines) + "\n"


def _write(report: TaskReport, run_dir: Path, out_dir: Path) -> dict[str, Any]:
    assert report.best is not None
    assert report.figure is not None
    candidate, figure = report.best.proposal.candidate, report.figure
    text = header(candidate, figure, run_dir) + candidate.source
    name = file_name(report.task_id)
    (out_dir / name).write_text(text)
    return {
        "file": name,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "task_id": report.task_id,
        "candidate_id": candidate.id,
        "language": candidate.language.value,
        "proposer": report.best.proposal.proposer,
        "status": figure.status.value,
        "confirmed": report.confirmed,
        "config_id": figure.config_id,
        "speedup": None if figure.speedup is None else figure.speedup.value,
        "interval": to_record(figure.speedup),
        "against_compile": to_record(report.against_compile),
        "precision": figure.precision,
        "environment": dict(figure.environment),
    }
