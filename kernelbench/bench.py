"""A set of kernels on a suite: evaluated once each, resumable per sample, reported at any time.

What counts in a report belongs to the task texts, kernels, protocol and environment at hand; rows
of others stay in the record and are counted apart. A fault of ours leaves no row: the next call
tries that sample again. With `fit_memory` a task without room is taken at a smaller batch, which is
another question (kernelbench/fitting.py); what is recorded of the whole stays as it is without.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from kernelbench.bench_report import Report, standings, summaries
from kernelbench.fitting import Sizes
from kernelbench.metrics import score_of, summarise
from kernelbench.results import (
    BASELINES,
    EVALUATIONS,
    REFERENCES,
    RESULTS,
    SUMMARY,
    Key,
    Reference,
    Row,
    append_record,
    read_records,
    refuse_foreign,
    write_baselines,
    write_csv,
    write_json,
    write_upstream,
)
from kernelbench.scaling import Scaling
from kernelbench.submissions import NUMBERED, Submission
from sandbox.errors import ConfigError, InvalidReference, Shortage, WarpsmithError
from sandbox.figures import Baseline
from sandbox.judging.invalid import NoRoom
from sandbox.types import EvalConfig, Evaluation, Request, Status, Task
from sandbox.words import number_of

REPORT_EVERY_S = 20.0
"""Between rewritten reports while evaluations go on."""


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
    """What agent.engines.evaluating.EngineJudge offers; nothing begins once it is told to end."""

    def evaluate_many(self, requests: Sequence[Request]) -> Iterator[tuple[int, Evaluation]]:
        """Each with its place among the requests, as they end."""
        ...

    def prepare_many(
        self, tasks: Sequence[Task], config: EvalConfig
    ) -> Iterator[tuple[Task, Figures | WarpsmithError]]:
        """Each with its figures, or why there are none, as they end."""
        ...


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
    fit_memory: bool = False
    empty: bool = False
    """An input of which nothing is a kernel, as a campaign without a win: every task fails."""
    sizes: Sizes = field(init=False)
    hashes: dict[str, str] = field(default_factory=dict, init=False)
    """Of the tasks' texts at their sizes, by task id."""
    rows: dict[Key, Row] = field(default_factory=dict, init=False)
    """Of sizes that were left for a smaller one, too."""
    references: dict[str, Reference] = field(default_factory=dict, init=False)
    """By task id."""

    def __post_init__(self) -> None:
        """Reads what earlier calls wrote; raises ConfigError where that cannot be read."""
        refuse_foreign(self.folder)
        rows, complaints = read_records(self.folder / EVALUATIONS, Row)
        found, bad = read_records(self.folder / REFERENCES, Reference)
        self.sizes = Sizes(self.tasks, fit=self.fit_memory)
        self._settle(found if self.alone else rows)
        sizes = {id: (*self.sizes.left(id), here) for id, here in self.hashes.items()}
        wanted = {self._key(s, h) for s in self.submissions for h in sizes[s.candidate.task_id]}
        apart = Counter[str]()
        for row in rows:
            if row.key in wanted and dict(row.environment) == dict(self.environment):
                self.rows[row.key] = row
            elif row.scaled is not None and not self.fit_memory:
                apart["of problems scaled to fit memory, which count with --fit-memory"] += 1
            else:
                apart["of other kernels, task texts, protocols or environments"] += 1
        told = ((number_of(n, "evaluation"), what) for what, n in apart.items())
        complaints += [f"{self.folder / EVALUATIONS}: {n} {what}" for n, what in told]
        for reference in filter(self._is_here, found):
            if self.hashes.get(reference.task_id) == reference.task_hash:
                self.references[reference.task_id] = reference
        self.left_out = (*self.left_out, *complaints, *bad)

    @property
    def alone(self) -> bool:
        return not (self.submissions or self.empty)

    def _is_here(self, record: Row | Reference) -> bool:
        """Whether it is of this protocol and environment."""
        same = dict(record.environment) == dict(self.environment)
        return same and record.config_id == self.config.id

    def _settle(self, records: Sequence[Row | Reference]) -> None:
        """The sizes that records of tasks to be evaluated have come to."""
        self.hashes = {task.id: task.hash for task in self.tasks}
        asked = self.hashes if self.alone else {s.candidate.task_id for s in self.submissions}
        seen: dict[str, dict[str, bool]] = {task_id: {} for task_id in asked}
        for record in filter(self._is_here, records):
            known = seen.get(record.task_id, {})
            known[record.task_hash] = known.get(record.task_hash, False) or record.no_room
        for task_id, hashes in seen.items():
            self.sizes.settle(task_id, hashes)
            self.hashes[task_id] = self.sizes.task(task_id).hash

    def _key(self, submission: Submission, task_hash: str | None = None) -> Key:
        """Of its task at its size, or at another one."""
        candidate = submission.candidate
        task_hash = task_hash or self.hashes[candidate.task_id]
        return (task_hash, submission.sample, candidate.id, self.config.id)

    def _shrink(self, task_id: str, task_hash: str) -> bool:
        """It has no room at this size: take the next smaller one, unless that is done already;
        False where there is none.
        """
        if self.hashes[task_id] == task_hash and not self.sizes.shrink(task_id):
            return False
        self.hashes[task_id] = self.sizes.task(task_id).hash
        self.references.pop(task_id, None)
        return True

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
        tried = set[Key]()
        while todo := [s for s in self.pending if self._key(s) not in tried]:
            tried |= {self._key(s) for s in todo}
            self._evaluate(judge, todo, on_row, on_fault)
        self._time_references(judge, on_reference, on_fault)
        self.write()

    def _evaluate(
        self,
        judge: Judge,
        todo: Sequence[Submission],
        on_row: Callable[[Row, int], None],
        on_fault: Callable[[str, str], None],
    ) -> None:
        """Each once; a task without room is smaller afterwards."""
        reported = time.monotonic()
        requests = [
            Request(self.sizes.task(s.candidate.task_id), s.candidate, self.config) for s in todo
        ]
        scalings = [self.sizes.scaling(request.task.id) for request in requests]
        for number, (place, evaluation) in enumerate(judge.evaluate_many(requests), 1):
            submission, task = todo[place], requests[place].task
            smaller = evaluation.no_room and self._shrink(task.id, task.hash)
            why = self._fault(evaluation)
            if why:
                on_fault(str(submission), why + (self._next(task.id) if smaller else ""))
                continue
            row = self._row(submission, task, scalings[place], evaluation)
            append_record(self.folder / EVALUATIONS, row)
            self.rows[row.key] = row
            on_row(self._told(row), len(todo) - number)
            if time.monotonic() - reported > REPORT_EVERY_S:
                self.write()
                reported = time.monotonic()

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

    def _row(
        self, submission: Submission, task: Task, scaling: Scaling | None, evaluation: Evaluation
    ) -> Row:
        language, origin = submission.candidate.language, submission.origin
        place = (task.id, task.hash, submission.sample, language, origin)
        return Row(*place, dict(self.environment), evaluation, scaling, submission.taught)

    def _next(self, task_id: str) -> str:
        """Where a task that had no room goes on, for a reader."""
        return f"; next at {self.sizes.scaling(task_id)}"

    def _told(self, row: Row) -> Row:
        """For a reader: with what its size has to do with it."""
        found = row.evaluation
        detail = self._sized(row, found.detail)
        if row.scaled is not None and found.status.scored and not found.passed:
            detail += f" (at {row.scaled}: a kernel made for the whole size may fail there)"
        return replace(row, evaluation=replace(found, detail=detail))

    def _sized(self, record: Row | Reference, detail: str) -> str:
        """Of a task that had no room: what became of it."""
        if not record.no_room:
            return detail
        if self.hashes[record.task_id] != record.task_hash:
            return f"no room{self._next(record.task_id)}: {detail}"
        why = self.sizes.why(record.task_id)
        return f"{detail}; {why}" if why else detail

    def _time_references(
        self,
        judge: Judge,
        on_reference: Callable[[Reference, int], None],
        on_fault: Callable[[str, str], None],
    ) -> None:
        """KernelBench's analysis drops a problem without a baseline, failed kernels with it: an
        estimate will do, and none of what is scaled. Without any kernels the baselines of all tasks
        are timed.
        """
        todo, tried = self._untimed(), set[str]()
        while True:
            self._prepare(judge, todo, on_reference, on_fault)
            tried |= {task.hash for task in todo}
            todo = [task for task in self._untimed() if task.hash not in tried]
            if not todo:
                return

    def _untimed(self) -> list[Task]:
        """Those at their sizes that want a reference's figures."""
        alone = not self.submissions
        timed = {row.task_id for row in self.rows.values() if row.evaluation.timing is not None}
        known = timed | {id for id, r in self.references.items() if r.timed or not alone}
        return [
            self.sizes.task(task.id)
            for task in self.tasks
            if task.id not in known
            and (self.alone or (NUMBERED.match(task.id) and self.sizes.scaling(task.id) is None))
        ]

    def _prepare(
        self,
        judge: Judge,
        todo: Sequence[Task],
        on_reference: Callable[[Reference, int], None],
        on_fault: Callable[[str, str], None],
    ) -> None:
        """Each once; without kernels a task without room is smaller afterwards."""
        alone = self.alone
        config = replace(self.config, baselines_only=alone, verify_only=not alone)
        reported = time.monotonic()
        for number, (task, found) in enumerate(judge.prepare_many(todo, config), 1):
            scaling = self.sizes.scaling(task.id)
            lacked = alone and isinstance(found, NoRoom | Shortage)
            smaller = lacked and self._shrink(task.id, task.hash)
            eager_ms: float | None = None
            baselines: tuple[Baseline, ...] = ()
            seconds: Mapping[str, float] = {}
            detail = ""
            if isinstance(found, InvalidReference):
                detail = _without(task.id, str(found))
            elif isinstance(found, WarpsmithError):
                on_fault(task.id, str(found) + (self._next(task.id) if smaller else ""))
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
                scaled=scaling,
                no_room=isinstance(found, NoRoom),
            )
            append_record(self.folder / REFERENCES, reference)
            if not smaller:
                self.references[task.id] = reference
            told = replace(reference, detail=self._sized(reference, detail))
            on_reference(told, len(todo) - number)
            if time.monotonic() - reported > REPORT_EVERY_S:
                self.write()
                reported = time.monotonic()

    def report(self) -> Report:
        """What the rows at hand say."""
        rows = self.at_size()
        waiting = {s.candidate.task_id for s in self.pending}
        if self.alone and not rows:
            waiting = self.hashes.keys() - self.references.keys()
        known = self.references.values()
        not_scored = {
            r.task_id: self._sized(r, _without(r.task_id, r.detail)) for r in known if r.detail
        }
        not_scored |= {
            r.task_id: _without(r.task_id, self._told(r).evaluation.detail)
            for r in rows
            if not r.evaluation.status.scored
        }
        told = [t.id for t in self.tasks if t.id not in waiting and t.id not in not_scored]
        scaled = {task_id: str(s) for task_id in told if (s := self.sizes.scaling(task_id))}
        counted = [task_id for task_id in told if task_id not in scaled]
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
            tuple(sorted(set(counted) - {r.task_id for r in rows})) if not self.alone else (),
            (*(r.mark for r in rows), *(r.mark for r in known)),
            *(summaries(counted, scores) if rows or not self.alone else (None, None, {}, {})),
            standings({k: b for k, b in self.timed_baselines().items() if k not in scaled}),
            scaled,
            summarise(list(scaled), scores) if scaled and not self.alone else None,
            tuple(sorted(waiting & {r.task_id for r in rows})),
        )

    def at_size(self) -> list[Row]:
        """Rows of the sizes that count."""
        left = {task.id: self.sizes.left(task.id) for task in self.tasks}
        return [r for r in self.rows.values() if r.task_hash not in left[r.task_id]]

    def timed_baselines(self) -> dict[str, tuple[Baseline, ...]]:
        """By task, in the suite's order: with its first timed kernel, else without one."""
        found = {r.task_id: r.baselines for r in self.references.values() if r.baselines}
        rows = sorted(self.at_size(), key=lambda r: r.sample, reverse=True)
        found |= {r.task_id: b for r in rows if (b := r.evaluation.baselines)}
        return {task.id: found[task.id] for task in self.tasks if task.id in found}

    def write(self) -> Report:
        """Summary, CSV and KernelBench's files from what is known now; raises ConfigError."""
        report = self.report()
        order = {task.id: number for number, task in enumerate(self.tasks)}
        rows, here = (
            sorted(found, key=lambda r: (order[r.task_id], r.sample))
            for found in (self.rows.values(), map(self._told, self.at_size()))
        )
        baselines, references = self.timed_baselines(), list(self.references.values())
        try:
            write_json(self.folder / SUMMARY, report)
            write_csv(self.folder / RESULTS, here)
            write_baselines(self.folder / BASELINES, baselines, report.scaled)
            write_upstream(self.folder / "kernelbench", list(order), rows, references)
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be written ({error.strerror})") from error
        return report


def _without(task_id: str, detail: str) -> str:
    """A reason as it reads behind the task's name, which many begin with."""
    return detail.removeprefix(f"{task_id}: ")
