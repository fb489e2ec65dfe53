"""A page from a bench's folder: its records, as far as they have come.

Figures over tasks are those of summary.json, which knows the suite; rows and curves come from the
evaluations of the same protocol and environment. A bench keeps no sources: they are where its input
was.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.journals.timings import device_name
from agent.report.details import pack, verdict
from agent.report.figures import baseline_curves, by_stage, duration, fast_table, headline_tiles
from agent.report.page import (
    STATE_WORDS,
    Caught,
    Curve,
    Page,
    Row,
    State,
    Tile,
    counted,
    fast_curve,
)
from agent.report.texts import Texts
from kernelbench.bench_report import Report
from kernelbench.metrics import Score, Summary, best_figure, figure, score_of
from kernelbench.results import (
    EVALUATIONS,
    REFERENCES,
    SCHEMA_VERSION,
    SUMMARY,
    Reference,
    read_records,
)
from kernelbench.results import Row as Sample
from sandbox.errors import ConfigError
from sandbox.evidence import Kind
from sandbox.records import from_record
from sandbox.types import Evaluation, Status
from sandbox.words import number_of, visible

FOOTNOTES = (
    "The headline is the geometric mean over all tasks; a failure or a missing kernel counts 1.0. "
    "Its interval is a bootstrap over tasks (95 %, 10 000 resamples, fixed seed). A task with "
    "several samples is scored by its first one.",
    "B* is the fastest of eager and the baselines timed beside it, chosen on some process pairs "
    "and measured on others. In the headline a kernel that is slower than B* counts 1.0 against "
    "it: B* would be kept.",
)
SCALED = "scaled to fit memory, and in no figure but this"


def bench_page(folder: Path, references: Sequence[Curve] = ()) -> Page:
    """Everything the folder says now; raises ConfigError where it is no bench's."""
    report = read_report(folder)
    samples, complaints = here(folder, report)
    first = first_samples(samples)
    rows = [_row(own, samples, report) for own in first.values()]
    rows += [
        Row(task_id, State.LEFT_OUT, "not scored", visible(reason))
        for task_id, reason in report.not_scored.items()
        if task_id not in first
    ]
    rows += [Row(task_id, State.FAILED, "no kernel") for task_id in report.without_kernel]
    if not samples and report.all is None:
        rows += [_reference_row(found) for found in _references(folder, report)]
    by_task = {task_id: [s for s in samples if s.task_id == task_id] for task_id in first}
    statuses = Counter(s.evaluation.status.value for s in samples)
    about = report.about
    return Page(
        title=visible(folder.resolve().name),
        kind="bench",
        subtitle=tuple(
            map(
                visible,
                (
                    device_of(samples, report),
                    f"input {about['input']}" if about.get("input") else "no kernels",
                    f"suite {about.get('suite', '')}",
                    f"protocol {about.get('protocol') or about.get('preset', '')}",
                ),
            )
        ),
        notices=_notices(report),
        tiles=_tiles(report, samples),
        rows=tuple(rows),
        fast=(*_fast(folder, report, first, rows), *references),
        fast_table=fast_table(report.all),
        statuses=dict(statuses.most_common()),
        stages=_stages(samples),
        caught=tuple(
            Caught(
                s.task_id,
                s.evaluation.candidate_id,
                s.sample,
                visible(s.evaluation.detail),
                tuple(str(e.layer) for e in s.evaluation.suspicions),
            )
            for s in samples
            if s.evaluation.status is Status.REWARD_HACK
        ),
        subsets=_subsets(report),
        environment=dict(report.environment),
        commands=(
            ("scored as, and goes on as", visible(shlex.join(_command(about, folder)))),
            ("against another", f"warpsmith compare {shlex.quote(str(folder))} OTHER"),
        ),
        details=[_details(by_task[row.task_id]) if row.task_id in first else None for row in rows],
        footnotes=(*FOOTNOTES, *(visible(line) for line in (*report.left_out, *complaints)[:40])),
    )


def read_report(folder: Path) -> Report:
    """What the bench wrote last."""
    path = folder / SUMMARY
    if not path.is_file():
        raise ConfigError(f"{folder}: no bench's results here (no {SUMMARY}); run the bench first")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version = record.pop("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema version is {version}; expected {SCHEMA_VERSION}")
        return from_record(Report, record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path}: not a bench's summary ({error}); expected a folder that `warpsmith bench` "
            "wrote: run the bench again, it goes on where it stopped"
        ) from error


def here(folder: Path, report: Report) -> tuple[list[Sample], list[str]]:
    """Of each task and sample the last evaluation under the summary's protocol, on its machine, of
    the tasks and kernels that it is of.
    """
    found, complaints = read_records(folder / EVALUATIONS, Sample)
    marks = None if report.counted is None else set(report.counted)
    kept = {
        (s.task_id, s.sample): s
        for s in found
        if s.evaluation.config_id == report.config_id
        and dict(s.environment) == dict(report.environment)
        and (marks is None or s.mark in marks)
    }
    return [kept[key] for key in sorted(kept)], complaints


def first_samples(samples: Sequence[Sample]) -> dict[str, Sample]:
    first: dict[str, Sample] = {}
    for sample in samples:
        first.setdefault(sample.task_id, sample)
    return first


def reference_curve(folder: Path) -> Curve:
    """fast_p of another bench, to be drawn beside a page's own."""
    report = read_report(folder)
    samples, _ = here(folder, report)
    ratios, total = _ratios(report, first_samples(samples))
    name = folder.resolve().name
    return fast_curve(name, ratios, f"{number_of(total, 'task')}, {device_of(samples, report)}")


def device_of(samples: Sequence[Sample], report: Report) -> str:
    known = report.environment
    name = known.get("gpu") or known.get("cpu") or known.get("device")
    return name or next((device_name(s.evaluation) for s in samples), "unknown device")


def _score(sample: Sample) -> Score | None:
    if not sample.evaluation.status.scored:
        return None
    return score_of(sample.task_id, sample.sample, sample.evaluation)


def _ratios(report: Report, first: Mapping[str, Sample]) -> tuple[list[float | None], int]:
    """Speedups of all tasks that count, None for failures and missing kernels, and how many."""
    apart = {*report.under_way, *report.not_scored}
    scores = [_score(s) for s in first.values() if s.scaled is None and s.task_id not in apart]
    known = [s.speedup for s in scores if s is not None]
    total = max(len(known), 0 if report.all is None else report.all.tasks)
    return [*known, *[None] * (total - len(known))], total


def _row(own: Sample, samples: Sequence[Sample], report: Report) -> Row:
    found, timing = own.evaluation, own.evaluation.timing
    score = _score(own)
    mine = [s for s in samples if s.task_id == own.task_id]
    # Of a first sample that failed there are none: they are the task's, whichever it was timed for.
    timed = next((s.evaluation.baselines for s in (own, *mine) if s.evaluation.baselines), ())
    state, word = _state(own)
    if own.task_id in report.under_way:
        state, word = State.RUNNING, STATE_WORDS[State.RUNNING]
    if found.no_room and report.about.get("fit_memory"):
        word = "no room, not scaled" if own.scaled is None else f"no room at {own.scaled}"
    return Row(
        own.task_id,
        state,
        word,
        visible(report.not_scored.get(own.task_id, found.detail)),
        found.speedup,
        None if score is None else score.against_best,
        {b.name: b.speedup.value for b in timed if b.speedup is not None},
        None if timing is None else timing.reference_ms,
        None if timing is None or not found.passed else timing.candidate_ms,
        len(mine),
        sum(s.evaluation.passed for s in mine),
        own.language.value,
        "" if found.kind is None else found.kind.value,
        found.precision or "",
        len(found.suspicions) if found.passed else 0,
        None if score is None else score.roofline,
    )


def _references(folder: Path, report: Report) -> list[Reference]:
    """Of tasks that can be scored, under the summary's protocol, on its machine."""
    found, _ = read_records(folder / REFERENCES, Reference)
    return [
        r
        for r in found
        if r.config_id == report.config_id
        and dict(r.environment) == dict(report.environment)
        and (report.counted is None or r.mark in report.counted)
        and not r.detail
    ]


def _reference_row(found: Reference) -> Row:
    """Of a task without kernels: the fastest of eager and its baselines."""
    timed = [(b.speedup, b.latency_ms, b.name) for b in found.baselines if b.speedup is not None]
    speedup, latency_ms, name = max(timed, key=lambda b: b[0].value, default=(None, None, ""))
    faster = speedup is not None and speedup.low > 1
    state = State.APART if faster else State.EVEN
    word = f"fastest: {name}" if faster else "no faster baseline"
    return Row(
        found.task_id,
        *((state, word) if found.scaled is None else (State.SCALED, f"{word} at {found.scaled}")),
        speedup=speedup,
        baselines={name: speedup.value for speedup, _, name in timed},
        eager_ms=found.eager_ms,
        best_ms=latency_ms if faster else None,
    )


def _state(own: Sample) -> tuple[State, str]:
    state, word = _state_of(own.evaluation)
    if own.scaled is None or state is State.LEFT_OUT:
        return state, word
    return State.SCALED, f"{word} at {own.scaled}"


def _state_of(found: Evaluation) -> tuple[State, str]:
    if not found.status.scored:
        return State.LEFT_OUT, found.status.value
    if not found.passed:
        return State.FAILED, found.status.value
    if found.timing is None or not found.timing.faster:
        return State.EVEN, "no faster"
    return (
        (State.WIN, "faster")
        if found.kind in (None, Kind.KERNEL)
        else (
            State.APART,
            f"faster ({found.kind})",
        )
    )


def _notices(report: Report) -> tuple[str, ...]:
    said = [line for line in (report.partial, report.scaled_note) if line]
    if report.not_scored:
        said.append(f"Not scored, and in no figure: {number_of(len(report.not_scored), 'task')}.")
    return tuple(said)


def _tiles(report: Report, samples: Sequence[Sample]) -> tuple[Tile, ...]:
    tiles = list[Tile]()
    summary = report.all
    if summary is not None:
        note = f"geometric mean over {number_of(summary.tasks, 'task')}, failures 1.0"
        tiles += headline_tiles(summary, note)
        none = counted([(summary.without_kernel, "without a kernel")])
        tiles.append(Tile("correct", f"{summary.correct} of {summary.tasks}", none))
        if summary.conditional is not None:
            note = "geometric mean against eager where correct; not to be quoted alone"
            tiles.append(Tile("correct only", f"{summary.conditional:.2f}x", note))
        if len(summary.pass_at) > 1:
            shares = (f"@{k} {s.value:.2f}" for k, s in list(summary.pass_at.items())[1:])
            note = f"of one sample; {', '.join(shares)}, of tasks with so many samples or none"
            tiles.append(Tile("pass@1", f"{summary.pass_at['1'].value:.2f}", note))
        if summary.roofline is not None:
            tiles.append(Tile("roofline", f"{summary.roofline:.0%}", "of the floor, median"))
        if summary.memory is not None:
            note = "of the reference's, geometric mean of what is correct"
            tiles.append(Tile("peak memory", f"{summary.memory:.2f}x", note))
    apart = report.scaled_figures
    if apart is not None:
        note = f"{SCALED}: geometric mean against eager over {number_of(apart.tasks, 'task')}"
        shown = apart.headline if apart.tasks > 1 else None
        tiles.append(Tile("scaled tasks", f"{apart.headline.value:.2f}x", note, shown))
    for name, standing in report.baselines.items():
        ran = number_of(standing.tasks, "task")
        note = f"baseline: geometric mean against eager over {ran}, {standing.failed} failed"
        found = standing.speedup
        value = "-" if found is None else f"{found.value:.2f}x"
        tiles.append(Tile(name, value, note, found if standing.tasks > 1 else None))
    if not samples:
        return tuple(tiles)
    caught = sum(s.evaluation.status is Status.REWARD_HACK for s in samples)
    seconds = sum(s.evaluation.seconds.get("total", 0.0) for s in samples)
    note = counted([(caught, "caught cheating")])
    took = f"{duration(seconds)} in all" if seconds else ""
    tiles.append(Tile("evaluations", str(len(samples)), ", ".join(filter(None, (note, took)))))
    return tuple(tiles)


def _fast(
    folder: Path, report: Report, first: Mapping[str, Sample], rows: Sequence[Row]
) -> list[Curve]:
    ratios, total = _ratios(report, first)
    own = [fast_curve(folder.resolve().name, ratios)] if ratios else []
    whole = [row for row in rows if row.state is not State.SCALED]
    return [*own, *baseline_curves(whole, total)]


def _stages(samples: Sequence[Sample]) -> dict[str, float]:
    seconds = Counter[str]()
    for sample in samples:
        seconds.update({k: v for k, v in sample.evaluation.seconds.items() if k != "total"})
    return by_stage(seconds)


def _subsets(report: Report) -> tuple[tuple[str, ...], ...]:
    named: list[tuple[str, Summary]] = []
    if report.sound is not None:
        named.append(("without degenerate problems", report.sound))
    named += report.parts.items()
    named += ((f"only {kind}", summary) for kind, summary in report.kinds.items())
    if report.scaled_figures is not None:
        named.append((SCALED, report.scaled_figures))
    return tuple(
        (
            name,
            str(s.tasks),
            f"{s.correct} ({s.correctness:.0%})",
            figure(s.headline, s.tasks),
            best_figure(s),
        )
        for name, s in named
    )


def _command(about: Mapping[str, str], folder: Path) -> list[str]:
    words = ["warpsmith", "bench", *filter(None, [about.get("input")])]
    for suite in shlex.split(about.get("suite", "")):
        words += ["--suite", suite]
    for pattern in shlex.split(about.get("only", "")):
        words += ["--only", pattern]
    for name in ("preset", "device"):
        if about.get(name):
            words += [f"--{name}", about[name]]
    words += ["--fit-memory"] if about.get("fit_memory") else []
    return [*words, "--out", str(folder)]


def _details(samples: Sequence[Sample]) -> str:
    """Each sample as a candidate without a source."""
    texts = Texts()
    candidates: list[dict[str, Any]] = [
        {
            "n": sample.sample,
            "id": sample.evaluation.candidate_id,
            "by": visible(sample.origin),
            "language": sample.language.value,
            "search": verdict(sample.evaluation, texts),
        }
        for sample in samples
    ]
    return pack(
        {
            "id": samples[0].task_id,
            "best": 0,
            "lineage": [0],
            "candidates": candidates,
            "texts": texts.record(),
        }
    )
