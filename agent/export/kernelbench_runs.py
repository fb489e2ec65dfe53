"""KernelBench's form (Ouyang et al. 2025): stand-alone files that its own scripts can run.

DIR/runs/RUN/level_1_problem_19_sample_0_kernel.py   winners of its problems, one RUN per campaign
DIR/modelnew/TASK.py                                 winners of other tasks
DIR/manifest.json                                    figures, hashes, what was left out and why

It has no NVRTC back end: a `cuda` winner is converted to `load_inline` and judged and timed again,
as the candidate of its own that it is. Without its device it is written as not judged, and says so.
Figures are by our protocol; KernelBench's own come from its scripts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.export.artefact import Artefact, against_best, bound, decisive
from agent.export.folder import MANIFEST, check_folder, staged
from agent.export.modelnew import file_name
from agent.export.runtime.machine import machine_of
from agent.export.standalone import Judges, Standalone, standalone
from kernelbench.submissions import NUMBERED
from sandbox.errors import ConfigError
from sandbox.records import to_record
from sandbox.types import Language

SCHEMA_VERSION = 1
OWNED = ("runs", "modelnew")
BACKENDS = {Language.CUDA_INLINE: "cuda", Language.TRITON: "triton"}
"""KernelBench's names of the languages that it can run."""
STRICT = {
    r"\btry\s*:|\bexcept\b": "a `try` statement",
    r"\bpass\b": "the word `pass`",
    r"\bthreading\b|\bmultiprocessing\b|\bconcurrent\.futures\b|PoolExecutor": "threads",
    r"_make_subclass|\((torch\.)?Tensor\)|torch\.Tensor\.__new__": "a tensor subclass",
}
"""What its static checker refuses anywhere in a line before `#` and `//`."""


def export_kernelbench(artefacts: Sequence[Artefact], folder: Path, judges: Judges) -> list[Path]:
    """Write the files; returns them, the manifest last. `judges` tells who judges a task.

    Raises ConfigError where the folder cannot be written or holds something else.
    """
    check_folder(folder, "kernelbench")
    ready, left_out = prepare(artefacts, judges)
    try:
        with staged(folder, OWNED) as stage:
            entries = [_write(each, stage) for each in ready]
            record = {"schema_version": SCHEMA_VERSION, "kernels": entries, "left_out": left_out}
            (stage / MANIFEST).write_text(json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return [*(folder / entry["file"] for entry in entries), folder / MANIFEST]


def prepare(
    artefacts: Sequence[Artefact], judges: Judges
) -> tuple[list[Standalone], dict[str, str]]:
    """Kernels that KernelBench can run, and why the others are left out, by task."""
    ready: dict[Path, Standalone] = {}
    left_out: dict[str, str] = {}
    for artefact in artefacts:
        made = _prepared(artefact, judges)
        if isinstance(made, str):
            left_out[artefact.task.id] = made
            continue
        path = relative_path(artefact.task.id, artefact.provenance.run)
        known = ready.setdefault(path, made)
        if known is not made:  # of another machine, or of another run of the same name
            loser, ready[path] = sorted((known, made), key=lambda each: bound(each.artefact))
            machine = machine_of(decisive(loser.artefact).environment)
            left_out[artefact.task.id] = f"{path.as_posix()} holds another kernel, not {machine}'s"
    return list(ready.values()), left_out


def _prepared(artefact: Artefact, judges: Judges) -> Standalone | str:
    language = artefact.candidate.language
    if language is not Language.CUDA and language not in BACKENDS:
        return f"KernelBench has no back end for language {language.value}"
    made = standalone(artefact, None)  # what is refused need not be judged
    if isinstance(made, str):
        return made
    refused = refusal(made.candidate.source)
    if refused is not None:
        return f"KernelBench's static checker refuses {refused}"
    return standalone(artefact, judges(artefact.task))


def refusal(text: str) -> str | None:
    """What KernelBench's static checker would refuse, if anything."""
    lines = "\n".join(re.split("#|//", line)[0] for line in text.splitlines())
    return next((what for pattern, what in STRICT.items() if re.search(pattern, lines)), None)


def relative_path(task_id: str, run: str) -> Path:
    """Where KernelBench looks for a kernel of one of its problems; else a folder of our own."""
    match = NUMBERED.match(task_id)
    if match is None:
        return Path("modelnew") / file_name(task_id)
    return Path("runs") / run / f"level_{match[1]}_problem_{match[2]}_sample_0_kernel.py"


def header(ready: Standalone) -> str:
    """Comment lines that a reader of the file alone needs."""
    candidate, evaluation = ready.candidate, ready.evaluation
    lines = [f"Task:        {candidate.task_id} (defines ModelNew with the interface of its Model)"]
    if ready.is_converted:
        lines.append(f"Converted:   from {ready.artefact.candidate.id} (NVRTC): same device source")
    if evaluation is None:
        lines.append("Judged:      not yet, its device was not here")
    else:
        known = ", ".join(f"{k} {v}" for k, v in sorted(evaluation.environment.items()))
        lines.append(f"Speedup:     {evaluation.speedup} against eager PyTorch")
        lines.append(f"Environment: {known or 'unknown'}")
    lines.append(f"Made by:     warpsmith optimize --name {ready.artefact.provenance.run}")
    lines.append("Check it:    warpsmith evaluate TASK THIS_FILE")
    return "".join(f"# {line}\n" for line in lines) + "\n"


def _write(ready: Standalone, folder: Path) -> dict[str, Any]:
    artefact, candidate, evaluation = ready.artefact, ready.candidate, ready.evaluation
    path = relative_path(artefact.task.id, artefact.provenance.run)
    text = header(ready) + candidate.source
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)
    return {
        "file": path.as_posix(),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "task_id": artefact.task.id,
        "language": candidate.language.value,
        "backend": BACKENDS[candidate.language],
        "candidate_id": candidate.id,
        "converted_from": artefact.candidate.id if ready.is_converted else None,
        "status": "not judged" if evaluation is None else evaluation.status.value,
        "speedup": None if evaluation is None else to_record(evaluation.speedup),
        "against_best": None if evaluation is None else to_record(against_best(evaluation)),
        "before_conversion": to_record(decisive(artefact).speedup),
        "licence": artefact.licence,
        "environment": {} if evaluation is None else dict(evaluation.environment),
    }
