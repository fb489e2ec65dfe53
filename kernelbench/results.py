"""A bench's folder: our own record, KernelBench's files, CSV.

    evaluations.jsonl                    one line per evaluation; what a resumed call reads
    references.jsonl                     one line per task: how long eager and the baselines take
    summary.json, results.csv            rewritten from the records
    baselines.csv                        likewise: a line per task and baseline
    kernelbench/LEVEL/eval_results.json  as KernelBench's evaluation writes it, milliseconds
    kernelbench/timing/baseline_*.json   as its baseline script writes it, milliseconds

In KernelBench's files `runtime` is eager's latency over the *paired* speedup, so that its analysis
finds our ratios: the two latencies were measured in alternating rounds, and their ratio is better
known than either. Its own figures come from another protocol: do not mix the two. What was scaled
to fit memory is another problem than KernelBench's, and in none of its files.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from kernelbench.scaling import Scaling
from kernelbench.submissions import NUMBERED
from sandbox.cache import write_text
from sandbox.errors import ConfigError
from sandbox.figures import Baseline
from sandbox.judging.best import best_baseline
from sandbox.records import from_record, to_record
from sandbox.types import Evaluation, Language, Status

SCHEMA_VERSION = 1
EVALUATIONS = "evaluations.jsonl"
REFERENCES = "references.jsonl"
SUMMARY = "summary.json"
RESULTS, BASELINES = "results.csv", "baselines.csv"
UNCOMPILED = (Status.REJECTED, Status.COMPILE_ERROR)
UPSTREAM_NAMES = {
    "compile": "baseline_time_torch_compile_inductor_default",
    "max_autotune": "baseline_time_torch_compile_inductor_max-autotune-no-cudagraphs",
    "cuda_graph": "baseline_time_torch_cuda_graph",
}
"""Of its baseline files; the last has no counterpart there."""
EAGER = "baseline_time_torch"
NO_KERNEL: dict[str, Any] = {
    "sample_id": 0,
    "compiled": False,
    "correctness": False,
    "metadata": {"status": "no kernel"},
    "runtime": -1.0,
    "runtime_stats": {},
}


@dataclass(frozen=True)
class Row:
    """One evaluation of one sample."""

    task_id: str
    task_hash: str
    sample: int
    language: Language
    origin: str
    environment: Mapping[str, str]
    """What the device's facts said; empty in an Evaluation that never began."""
    evaluation: Evaluation
    scaled: Scaling | None = None
    """The size that it was taken at, of which `task_hash` is; None for the whole problem."""
    taught: str = ""
    """The policy that wrote the kernel, where that was taught evaluated tasks."""
    schema_version: int = SCHEMA_VERSION

    @property
    def config_id(self) -> str:
        return self.evaluation.config_id

    @property
    def no_room(self) -> bool:
        """Whether the task had none at this size."""
        return self.evaluation.no_room

    @property
    def key(self) -> Key:
        found = self.evaluation
        return (self.task_hash, self.sample, found.candidate_id, found.config_id)

    @property
    def mark(self) -> str:
        """Its key as a summary names it."""
        return "/".join(map(str, self.key))


Key = tuple[str, int, str, str]
"""Task text, sample, candidate, protocol: an evaluation of these is not repeated."""


@dataclass(frozen=True)
class Reference:
    """How long a task's reference takes, whether or not a kernel for it passed."""

    task_id: str
    task_hash: str
    config_id: str
    environment: Mapping[str, str]
    eager_ms: float | None
    """As timed beside the first baseline, else a first estimate; None where it cannot be scored."""
    baselines: tuple[Baseline, ...] = ()
    detail: str = ""
    timed: bool = True
    """False for an estimate alone."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """That this took, by stage; none where the figures were known."""
    scaled: Scaling | None = None
    """As a Row's."""
    no_room: bool = False
    """As a Row's."""
    schema_version: int = SCHEMA_VERSION

    @property
    def mark(self) -> str:
        """As a summary names it."""
        return f"{self.task_hash}/{self.config_id}"


T = TypeVar("T", Row, Reference)


def refuse_foreign(folder: Path) -> None:
    """Raises ConfigError where writing a bench here would replace what none has written."""
    if any((folder / name).exists() for name in (EVALUATIONS, REFERENCES)) or _is_ours(folder):
        return
    for name in (SUMMARY, RESULTS, BASELINES):
        if (folder / name).exists():
            raise ConfigError(
                f"{folder / name}: is no bench's, and would be lost; take another --out"
            )


def _is_ours(folder: Path) -> bool:
    try:
        return "schema_version" in json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError, TypeError):
        return False


def read_records(path: Path, kind: type[T]) -> tuple[list[T], list[str]]:
    """The whole lines of a file, none if there is no file, and a line for each that is not one.

    Raises ConfigError where the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    rows: list[T] = []
    complaints = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            version = record.get("schema_version") if isinstance(record, dict) else None
            if version != SCHEMA_VERSION:
                raise ValueError(f"schema version is {version}; expected {SCHEMA_VERSION}")
            rows.append(from_record(kind, record))
        except (ValueError, TypeError, KeyError) as error:
            complaints.append(f"{path}:{number}: not a record: {error}")
    return rows, complaints


def append_record(path: Path, record: Row | Reference) -> None:
    """One line; what a kill cut short before it stays a line of its own."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as stream:
            if stream.tell():
                stream.seek(-1, 2)
                if stream.read(1) != b"\n":
                    stream.write(b"\n")
            stream.write(json.dumps(to_record(record)).encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """One line per evaluation, for a spreadsheet."""
    names = (
        *("task", "sample", "status", "language", "kind", "precision", "speedup", "low", "high"),
        *("candidate_ms", "eager_ms", "floor_ms", "noise_floor", "best_baseline"),
        *("best_baseline_speedup", "peak_mib", "reference_peak_mib", "scaled"),
        *("candidate_id", "origin", "detail"),
    )
    with _table(path) as stream:
        table = csv.writer(stream)
        table.writerow(names)
        for row in rows:
            table.writerow(["" if cell is None else cell for cell in _cells(row)])


def write_baselines(
    path: Path, by_task: Mapping[str, Sequence[Baseline]], scaled: Mapping[str, str]
) -> None:
    """One line per task and baseline; `scaled`: the sizes of tasks that were not taken whole."""
    figures = ("speedup", "low", "high", "baseline_ms", "eager_ms")
    names = ("task", "baseline", *figures, "scaled", "detail")
    with _table(path) as stream:
        table = csv.writer(stream)
        table.writerow(names)
        for task_id, baselines in by_task.items():
            for one in baselines:
                cells: tuple[object, ...] = ("",) * 5
                if one.speedup is not None and one.latency_ms is not None:
                    found = one.speedup
                    eager_ms = one.latency_ms * found.value
                    cells = (found.value, found.low, found.high, one.latency_ms, eager_ms)
                size = scaled.get(task_id, "")
                table.writerow([task_id, one.name, *cells, size, one.detail])


def _table(path: Path) -> TextIO:
    """Names of files need not be UTF-8: what they hold besides is written as its code."""
    return path.open("w", newline="", encoding="utf-8", errors="backslashreplace")


def _cells(row: Row) -> tuple[object, ...]:
    found, timing, speedup = row.evaluation, row.evaluation.timing, row.evaluation.speedup
    timed = any(b.speedup is not None for b in found.baselines)
    name, best = best_baseline(found.baselines) if timed else (None, None)
    fastest = best.value if best is not None else 1.0 if timed else None
    peaks = (row.evaluation.peak_bytes, row.evaluation.reference_peak_bytes)
    return (
        *(row.task_id, row.sample, found.status.value, row.language.value),
        *(None if found.kind is None else found.kind.value, found.precision),
        *((None,) * 3 if speedup is None else (speedup.value, speedup.low, speedup.high)),
        *(
            (None,) * 4
            if timing is None
            else (timing.candidate_ms, timing.reference_ms, timing.floor_ms, timing.noise_floor)
        ),
        *(name, fastest, *(None if peak is None else round(peak / 2**20) for peak in peaks)),
        *(row.scaled, found.candidate_id, row.origin, found.detail),
    )


def write_upstream(
    folder: Path, task_ids: Sequence[str], rows: Sequence[Row], references: Sequence[Reference]
) -> None:
    """KernelBench's files for the tasks that are KernelBench's, in this order; none for others, nor
    of what was scaled.

    Its older analyses pair the two files by position, so a task without a kernel has an entry too.
    Files of levels and baselines that are not among these are removed: a folder may have been used
    for others before.
    """
    rows = [row for row in rows if row.scaled is None]
    references = [reference for reference in references if reference.scaled is None]
    latencies = eager_latencies(rows, references)
    eager = {task_id: latencies[task_id] for task_id in task_ids if task_id in latencies}
    timing: dict[str, dict[str, dict[str, Any]]] = {}
    samples: dict[int, dict[str, list[dict[str, Any]]]] = {}
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.task_id, []).append(row)
    for task_id in task_ids:
        place = NUMBERED.match(task_id)
        if place is None or not (task_id in by_task or task_id in eager):
            continue
        found = [_upstream(row, eager.get(task_id)) for row in by_task.get(task_id, ())]
        samples.setdefault(int(place[1]), {})[place[2]] = found or [NO_KERNEL]
    records: Iterator[Row | Reference] = itertools.chain(rows, references)
    hardware = next((_hardware(record.environment) for record in records), "unknown")
    baselines = {r.task_id: r.baselines for r in references}
    baselines |= {r.task_id: r.evaluation.baselines for r in rows if r.evaluation.baselines}
    for task_id, eager_ms in eager.items():
        place = NUMBERED.match(task_id)
        if place is None:
            continue
        level, name = f"level{place[1]}", task_id.rpartition("/")[2] + ".py"
        known = {EAGER: eager_ms} | {
            UPSTREAM_NAMES.get(b.name, b.name): eager_ms / b.speedup.value
            for b in baselines.get(task_id, ())
            if b.speedup is not None
        }
        for file, latency_ms in known.items():
            stats = _stats([latency_ms], hardware)
            timing.setdefault(file, {}).setdefault(level, {})[name] = stats
    files: dict[Path, object] = {
        folder / f"level{level_number}" / "eval_results.json": results
        for level_number, results in samples.items()
    }
    files |= {folder / "timing" / f"{file}.json": levels for file, levels in timing.items()}
    before = {*folder.glob("level*/eval_results.json"), *folder.glob("timing/baseline_time_*.json")}
    for path in before - files.keys():
        path.unlink()
    for path, record in files.items():
        _write(path, record)


def eager_latencies(rows: Sequence[Row], references: Sequence[Reference]) -> dict[str, float]:
    """Milliseconds by task: as timed beside the first sample that was, else the first estimate."""
    estimates = {r.task_id: r.eager_ms for r in references if r.eager_ms is not None}
    timed: dict[str, float] = {}
    for row in rows:
        if row.evaluation.timing is not None:
            timed.setdefault(row.task_id, row.evaluation.timing.reference_ms)
    return estimates | timed


def _upstream(row: Row, eager_ms: float | None) -> dict[str, Any]:
    """An entry of eval_results.json; -1.0 is its sentinel for no runtime."""
    found, speedup, timing = row.evaluation, row.evaluation.speedup, row.evaluation.timing
    hardware = _hardware(row.environment)
    metadata = {"hardware": hardware, "device": row.environment.get("device", "unknown")}
    metadata |= {"status": found.status.value, "detail": found.detail}
    runtime, stats = -1.0, {}
    if speedup is not None and timing is not None and eager_ms is not None:
        runtime = eager_ms / speedup.value
        stats = _stats([pair.candidate_ms for pair in timing.pairs], hardware) | {"mean": runtime}
    return {
        "sample_id": row.sample,
        "compiled": found.status not in UNCOMPILED and found.status.scored,
        "correctness": found.passed,
        "metadata": metadata,
        "runtime": runtime,
        "runtime_stats": stats,
    }


def _stats(latencies_ms: Sequence[float], hardware: str) -> dict[str, Any]:
    mean = sum(latencies_ms) / len(latencies_ms)
    spread = sum((x - mean) ** 2 for x in latencies_ms) / max(1, len(latencies_ms) - 1)
    return {
        "mean": mean,
        "std": spread**0.5,
        "min": min(latencies_ms),
        "max": max(latencies_ms),
        "num_trials": len(latencies_ms),
        "hardware": hardware,
        "device": "cuda:0" if hardware != "cpu" else "cpu",
    }


def _hardware(environment: Mapping[str, str]) -> str:
    return environment.get("gpu") or environment.get("device", "unknown")


def _write(path: Path, record: object) -> None:
    write_text(path, json.dumps(record, indent=4) + "\n")


def write_json(path: Path, record: object) -> None:
    _write(path, {"schema_version": SCHEMA_VERSION, **to_record(record)})
