"""A set of kernels on a suite: evaluated once each, resumable per sample, reported at any time.

What counts in a report belongs to the task texts, kernels, protocol and environment at hand; rows
of others stay in the record and are counted apart. A fault of ours leaves no row: the next call
tries that sample again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from kernelbench.metrics import Score, Summary, bootstrap, only_kind, score_of, summarise
from kernelbench.published_flaws import is_degenerate
from kernelbench.results import (
    EVALUATIONS,
    REFERENCES,
    SUMMARY,
    Key,
    Reference,
    Row,
    append_record,
    read_records,
    write_baselines,
    write_csv,
    write_json,
    write_upstream,
)
from kernelbench.submissions import NUMBERED, Submission
from sandbox.errors import ConfigError, InvalidReference, WarpsmithError
from sandbox.evidence import Kind
from sandbox.figures import Baseline, Interval
from sandbox.types import EvalConfig, Evaluation, Request, Status, Task
from sandbox.words import number_of

REPORT_EVERY_S = 20.0
"""Between rewritten reports while evaluations go on."""
EARLY = (
    "Failures and missing kernels count already, while what is right waits to be timed: until then "
    "the figures say too little of these kernels."
)


class Figures(Protocol):
    """Of a task's reference."""

    @property
    def eager_ms(self) -> float | None: ...
    @property
    def estimate_ms(self) -> float | None: ...
    @property
    def timed(self) -> tuple[Baseline, ...]: ...
    @property
    def seconds(self) -> Mapping[str, float]: ...


class Judge(Protocol):
    """What agent.evaluating.EngineJudge offers; nothing begins once it is told to end."""

    def evaluate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, Evaluation]]:
        """Each with its place among the requests, as they end."""
        ...

    def prepare_many(
        self, tasks: Sequence[Task], config: EvalConfig
    ) -> Iterator[tuple[Task, Figures | WarpsmithError]]:
        """Each with its figures, or why there are none, as they end."""
        ...


@dataclass(frozen=True)
class Standing:
    """What a baseline is worth: geometric mean against eager, its interval over tasks."""

    tasks: int
    """On which it ran."""
    failed: int
    speedup: Interval | None


@dataclass(frozen=True)
class Report:
    """Everything that a bench can say now."""

    about: Mapping[str, str]
    """Input, suite, preset, command, version of the suite: as the caller told it."""
    config_id: str
    environment: Mapping[str, str]
    tasks: int
    """Of the suite."""
    waiting: int
    """Tasks whose samples are not all evaluated yet; in no figure."""
    not_scored: Mapping[str, str]
    """Tasks whose reference cannot be scored, and why; in no figure."""
    left_out: tuple[str, ...]
    """A line for each part of the input or of the record that could not be used."""
    without_kernel: tuple[str, ...] = ()
    """Tasks that count as failures since no sample was handed in."""
    counted: tuple[str, ...] | None = None
    """Marks of the records that this is made of; None in what an earlier version wrote."""
    all: Summary | None = None
    sound: Summary | None = None
    """Without problems that a published list calls degenerate; None where that changes nothing."""
    kinds: Mapping[str, Summary] = field(default_factory=dict)
    """Over all tasks, where only kernels of this kind count and the others are 1.0."""
    parts: Mapping[str, Summary] = field(default_factory=dict)
    """By level, or suite, where there are several."""
    baselines: Mapping[str, Standing] = field(default_factory=dict)
    """By name, against eager."""

    @property
    def partial(self) -> str:
        """What a reader must know before the figures; empty where every task is evaluated."""
        if not self.waiting:
            return ""
        of = f"{self.waiting} of {number_of(self.tasks, 'task')}"
        what = f"Partial: {of} not evaluated yet, and in no figure."
        return what if self.all is None else f"{what} {EARLY}"


@dataclass
class Bench:
    """One input on one suite, under one protocol, in one folder."""

    tasks: Sequence[Task]
    submissions: Sequence[Submission]
    config: EvalConfig
    environment: Mapping[str, str]
    folder: Path
    about: Mapping[str, str]
    left_out: Sequence[str] = ()
    hashes: dict[str, str] = field(default_factory=dict, init=False)
    """Of the tasks' texts, by task id."""
    rows: dict[Key, Row] = field(default_factory=dict, init=False)
    references: dict[str, Reference] = field(default_factory=dict, init=False)
    """By task id."""

    def __post_init__(self) -> None:
        """Reads what earlier calls wrote; raises ConfigError where that cannot be read."""
        self.hashes = {task.id: task.hash for task in self.tasks}
        rows, complaints = read_records(self.folder / EVALUATIONS, Row)
        wanted = {self._key(s) for s in self.submissions}
        others = 0
        for row in rows:
            if row.key in wanted and dict(row.environment) == dict(self.environment):
                self.rows[row.key] = row
            else:
                others += 1
        if others:
            what = "of other kernels, task texts, protocols or environments"
            complaints.append(f"{self.folder / EVALUATIONS}: {others} evaluations {what}")
        found, bad = read_records(self.folder / REFERENCES, Reference)
        for reference in found:
            here = dict(reference.environment) == dict(self.environment)
            same = self.hashes.get(reference.task_id) == reference.task_hash
            if here and same and reference.config_id == self.config.id:
                self.references[reference.task_id] = reference
        self.left_out = (*self.left_out, *complaints, *bad)

    def _key(self, submission: Submission) -> Key:
        candidate = submission.candidate
        task_hash = self.hashes[candidate.task_id]
        return (task_hash, submission.sample, candidate.id, self.config.id)

    @property
    def pending(self) -> list[Submission]:
        return [s for s in self.submissions if self._key(s) not in self.rows]

    def run(
        self,
        judge: Judge,
        *,
        on_row: Callable[[Row, int], None] = lambda _, __: None,
        on_reference: Callable[[Reference, int], None] = lambda _, __: None,
        on_fault: Callable[[str, str], None] = lambda _, __: None,
    ) -> None:
        """Evaluate what is pending, as far as the judge goes. A report is there from the beginning.

        `on_row` gets each new row and how many are left, `on_reference` the figures of a task
        without a timed kernel and how many are left, `on_fault` a sample or task and what failed.
        """
        self.write()
        by_id = {task.id: task for task in self.tasks}
        todo, reported = self.pending, time.monotonic()
        requests = [Request(by_id[s.candidate.task_id], s.candidate, self.config) for s in todo]
        for number, (place, evaluation) in enumerate(judge.evaluate_many(requests), 1):
            submission = todo[place]
            why = self._fault(evaluation)
            if why:
                on_fault(name_of(submission), why)
                continue
            row = self._row(submission, evaluation)
            append_record(self.folder / EVALUATIONS, row)
            self.rows[row.key] = row
            on_row(row, len(todo) - number)
            if time.monotonic() - reported > REPORT_EVERY_S:
                self.write()
                reported = time.monotonic()
        self._time_references(judge, on_reference, on_fault)
        self.write()

    def _fault(self, evaluation: Evaluation) -> str:
        """Why it says nothing here, where it does not."""
        if evaluation.status is Status.SANDBOX_ERROR:
            return evaluation.detail or "a fault of ours"
        for key, here in self.environment.items():
            there = evaluation.environment.get(key, here)
            if there != here:
                what = f"measured with {key} {there!r}, and the others with {here!r}"
                return f"{what}: name one kind of GPU, such as --gpu-type H100"
        return ""

    def _row(self, submission: Submission, evaluation: Evaluation) -> Row:
        candidate = submission.candidate
        return Row(
            candidate.task_id,
            self.hashes[candidate.task_id],
            submission.sample,
            candidate.language,
            submission.origin,
            dict(self.environment),
            evaluation,
        )

    def _time_references(
        self,
        judge: Judge,
        on_reference: Callable[[Reference, int], None],
        on_fault: Callable[[str, str], None],
    ) -> None:
        """KernelBench's analysis drops a problem without a baseline, failed kernels with it: an
        estimate will do. Without any kernels the baselines of all tasks are timed.
        """
        timed = {row.task_id for row in self.rows.values() if row.evaluation.timing is not None}
        alone = not self.submissions
        config = replace(self.config, baselines_only=alone, verify_only=not alone)
        known = timed | {id for id, r in self.references.items() if r.timed or not alone}
        waiting = [
            task
            for task in self.tasks
            if task.id not in known and (alone or NUMBERED.match(task.id))
        ]
        reported = time.monotonic()
        for number, (task, found) in enumerate(judge.prepare_many(waiting, config), 1):
            eager_ms: float | None = None
            baselines: tuple[Baseline, ...] = ()
            seconds: Mapping[str, float] = {}
            detail = ""
            if isinstance(found, InvalidReference):
                detail = _without(task.id, str(found))
            elif isinstance(found, WarpsmithError):
                on_fault(task.id, str(found))
                continue
            else:
                eager_ms, baselines = found.eager_ms or found.estimate_ms, found.timed
                seconds = found.seconds
            reference = Reference(
                task.id,
                task.hash,
                self.config.id,
                dict(self.environment),
                eager_ms,
                baselines,
                detail,
                timed=alone,
                seconds={stage: round(spent, 3) for stage, spent in seconds.items()},
            )
            append_record(self.folder / REFERENCES, reference)
            self.references[task.id] = reference
            on_reference(reference, len(waiting) - number)
            if time.monotonic() - reported > REPORT_EVERY_S:
                self.write()
                reported = time.monotonic()

    def report(self) -> Report:
        """What the rows at hand say."""
        rows = list(self.rows.values())
        waiting = {s.candidate.task_id for s in self.pending}
        if not self.submissions and not rows:
            waiting = self.hashes.keys() - self.references.keys()
        known = self.references.values()
        not_scored = {r.task_id: _without(r.task_id, r.detail) for r in known if r.detail}
        not_scored |= {
            r.task_id: _without(r.task_id, r.evaluation.detail)
            for r in rows
            if not r.evaluation.status.scored
        }
        counted = [t.id for t in self.tasks if t.id not in waiting and t.id not in not_scored]
        scores = [
            score_of(r.task_id, r.sample, r.evaluation) for r in rows if r.evaluation.status.scored
        ]
        return Report(
            dict(self.about),
            self.config.id,
            dict(self.environment),
            len(self.tasks),
            len(waiting),
            not_scored,
            tuple(self.left_out),
            tuple(sorted(set(counted) - {r.task_id for r in rows})) if self.submissions else (),
            (*(r.mark for r in rows), *(r.mark for r in known)),
            *(_summaries(counted, scores) if self.submissions or rows else (None, None, {}, {})),
            _standings(self.timed_baselines()),
        )

    def timed_baselines(self) -> dict[str, tuple[Baseline, ...]]:
        """By task, in the suite's order: with its first timed kernel, else without one."""
        found = {r.task_id: r.baselines for r in self.references.values() if r.baselines}
        found |= {r.task_id: b for r in self.rows.values() if (b := r.evaluation.baselines)}
        return {task.id: found[task.id] for task in self.tasks if task.id in found}

    def write(self) -> Report:
        """Summary, CSV and KernelBench's files from what is known now; raises ConfigError."""
        report = self.report()
        order = {task.id: number for number, task in enumerate(self.tasks)}
        rows = sorted(self.rows.values(), key=lambda r: (order[r.task_id], r.sample))
        try:
            write_json(self.folder / SUMMARY, report)
            write_csv(self.folder / "results.csv", rows)
            write_baselines(self.folder / "baselines.csv", self.timed_baselines())
            references = list(self.references.values())
            write_upstream(self.folder / "kernelbench", list(order), rows, references)
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be written ({error.strerror})") from error
        return report


def _standings(by_task: Mapping[str, tuple[Baseline, ...]]) -> dict[str, Standing]:
    found: dict[str, list[Interval | None]] = {}
    for baseline in (b for timed in by_task.values() for b in timed):
        found.setdefault(baseline.name, []).append(baseline.speedup)
    standings = {}
    for name, speedups in found.items():
        logs = [math.log(s.value) for s in speedups if s is not None]
        mean = bootstrap(logs) if logs else None
        standings[name] = Standing(len(logs), len(speedups) - len(logs), mean)
    return standings


def _summaries(
    counted: Sequence[str], scores: Sequence[Score]
) -> tuple[Summary | None, Summary | None, Mapping[str, Summary], Mapping[str, Summary]]:
    """Over all, without the degenerate ones where there are any, by kind, and by level."""
    if not counted:
        return None, None, {}, {}
    everything = summarise(counted, scores)
    sound = [task_id for task_id in counted if not is_degenerate(task_id)]
    differs = sound and len(sound) < len(counted)
    parts: dict[str, list[str]] = {}
    for task_id in counted:
        parts.setdefault(task_id.rpartition("/")[0], []).append(task_id)
    return (
        everything,
        summarise(sound, scores) if differs else None,
        {
            kind.value: summarise(counted, only_kind(scores, kind))
            for kind in Kind
            if kind.value in everything.kinds
        },
        {name: summarise(ids, scores) for name, ids in parts.items() if len(parts) > 1},
    )


def name_of(submission: Submission) -> str:
    return f"{submission.candidate.task_id} sample {submission.sample}"


def _without(task_id: str, detail: str) -> str:
    """A reason as it reads behind the task's name, which many begin with."""
    return detail.removeprefix(f"{task_id}: ")
