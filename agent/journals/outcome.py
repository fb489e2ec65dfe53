"""What a campaign can say about each task, live and at its end: pure views of journal rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.confirm import checked, promising, reported, upheld, wins
from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from agent.types import Attempt
from sandbox.evidence import Kind
from sandbox.figures import Baseline, Interval
from sandbox.types import Evaluation, Language, Status

INTERRUPTED = "interrupted"
"""Why a campaign stopped at Ctrl-C."""


class Stage(StrEnum):
    """Where a task stands."""

    WAITING = "waiting"
    PREPARING = "preparing"
    PROPOSING = "proposing"
    BUILDING = "building"
    MEASURING = "measuring"
    CONFIRMING = "confirming"
    DONE = "done"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        return self in (Stage.DONE, Stage.UNSUPPORTED, Stage.INVALID, Stage.STOPPED)


@dataclass(frozen=True)
class TaskReport:
    """One row of the table."""

    task_id: str
    stage: Stage
    tried: int = 0
    """Distinct candidates with an evaluation."""
    passed: int = 0
    """Of those, timed or not."""
    faults: int = 0
    """Of those, not judged by a fault of ours."""
    fault: str = ""
    """What the latest of them was."""
    budget: int = 0
    rounds: int = 0
    best: Attempt | None = None
    """The best that was confirmed; without one, what passed with the highest lower bound of its
    speedup."""
    confirmation: Evaluation | None = None
    """Of the best, measured afresh after it was selected; None where a fault of ours kept it from
    being so."""
    reason: str = ""
    """Why the task ended early or was not begun."""
    mean_seconds: float | None = None
    """Per evaluated candidate, all stages."""

    @property
    def figure(self) -> Evaluation | None:
        """The evaluation whose numbers are shown: the confirmation where there is one."""
        if self.confirmation is not None:
            return self.confirmation
        return None if self.best is None else self.best.evaluation

    @property
    def speedup(self) -> Interval | None:
        """Of the best against eager."""
        return None if self.figure is None else self.figure.speedup

    @property
    def against_compile(self) -> Interval | None:
        """Of the best against `torch.compile`, default mode; None where that was not timed."""
        baseline = self.compile_baseline
        if self.speedup is None or baseline is None or baseline.speedup is None:
            return None
        return self.speedup.divided_by(baseline.speedup)

    @property
    def compile_baseline(self) -> Baseline | None:
        baselines = self.figure.baselines if self.figure is not None else ()
        return next((b for b in baselines if b.name == "compile"), None)

    @property
    def confirmed(self) -> bool:
        """The best is a win when measured afresh, and the search had said so too."""
        if self.best is None or self.confirmation is None:
            return False
        return upheld(self.best.evaluation, self.confirmation)

    @property
    def refuted(self) -> bool:
        """It was measured afresh and is no promotion."""
        return self.confirmation is not None and not self.confirmed

    @property
    def exportable(self) -> bool:
        """Its figure is a win, on enough pairs, and no confirmation has refuted it."""
        return self.figure is not None and wins(self.figure) and not self.refuted

    @property
    def verdict(self) -> str:
        """The row's last word."""
        if self.stage is Stage.UNSUPPORTED:
            return "unsupported"
        if self.stage is Stage.INVALID:
            return "invalid reference"
        if self.best is None:
            if self.passed:
                return f"{self.passed} correct, not timed"
            if self.tried and self.tried == self.faults:
                return "none judged"
            return "none correct" if self.tried else "not tried"
        if not promising(self.best.evaluation):
            return "no win"
        if self.confirmation is None:
            return "unconfirmed win"
        if not self.confirmed:
            return "no win (not confirmed)"
        return win_of(self.confirmation.kind, self.best.proposal.candidate.language)


@dataclass(frozen=True)
class CampaignResult:
    tasks: tuple[TaskReport, ...]
    seconds: float
    """Of this call; a resumed run has had more."""
    stopped: str | None = None
    """Why it ended before its budgets were spent; None where it ran to the end."""
    awaiting: bool = False
    """Requests of it went into a file, or wait to."""

    @property
    def interrupted(self) -> bool:
        return self.stopped == INTERRUPTED

    @property
    def unfinished(self) -> bool:
        """The same call would go on: with a task at least, a model of which could not be asked."""
        return self.stopped is not None or any(t.stage is Stage.STOPPED for t in self.tasks)

    @property
    def tried(self) -> int:
        return sum(task.tried for task in self.tasks)


def win_of(kind: Kind | None, language: Language) -> str:
    """A win by a kernel, or by something that reports keep apart."""
    if kind is None:  # recorded before evaluations told
        kind = Kind.KERNEL if language.custom_kernel else Kind.REWRITE
    words = {Kind.KERNEL: "win", Kind.REWRITE: "win (rewrite)", Kind.FLAGS: "win (flags)"}
    return words.get(kind, "win (graph)")


def report(
    task_id: str, stage: Stage, records: Sequence[Recorded], *, budget: int = 0, reason: str = ""
) -> TaskReport:
    """The row of a task from its journal rows."""
    done = [r.evaluation for r in records if r.evaluation is not None]
    faults = [e.detail for e in done if e.status is Status.SANDBOX_ERROR]
    best = reported(records)
    total_s = sum(e.seconds.get("total", sum(e.seconds.values())) for e in done)
    return TaskReport(
        task_id,
        stage,
        tried=len(done),
        passed=sum(e.passed for e in done),
        faults=len(faults),
        fault=faults[-1].partition("\n")[0] if faults else "",
        budget=budget,
        rounds=1 + max((r.round for r in records), default=-1),
        best=None if best is None else best.attempt,
        confirmation=None if best is None else checked(best),
        reason=reason,
        mean_seconds=total_s / len(done) if done else None,
    )


def reports(journal: Journal) -> tuple[TaskReport, ...]:
    """Every task of a run as its journal has it; for `show`, while the run lives or later."""
    rows = []
    for task in journal.tasks():
        stage, _, reason = (journal.last_event("stage", task.id) or Stage.WAITING).partition(" ")
        records = journal.proposals(task.id)
        rows.append(report(task.id, Stage(stage), records, reason=reason, budget=len(records)))
    return tuple(rows)
