"""What a user sees of a campaign: a live table in a terminal or plain lines, then a final table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from agent.journals.outcome import CampaignResult, Stage, TaskReport
from agent.journals.timings import Pulse
from agent.learner import POLICY_VERSION
from agent.views.console import fitting, widened
from agent.views.tables import final_table, live_table
from sandbox.records import to_record
from sandbox.types import Evaluation
from sandbox.words import number_of, visible

NO_MODEL = "no model"


@dataclass(frozen=True)
class Header:
    """One line that says what produced the figures."""

    run: str
    engine: str
    lanes: int | None
    """None while the engine is not started."""
    proposer: str
    device: str

    def __str__(self) -> str:
        who = NO_MODEL if self.proposer == "features" else f"model: {self.proposer}"
        lanes = "" if self.lanes is None else f", {number_of(self.lanes, 'lane')}"
        return f"run: {self.run} · engine: {self.engine}{lanes} · {who} · device: {self.device}"


class CampaignView:
    """Shows reports as they come; a context manager."""

    def __init__(
        self,
        console: Console,
        header: Callable[[], Header],
        task_ids: Sequence[str],
        seconds: float | None,
    ) -> None:
        """The `header` is asked for whenever it is shown: an engine may not be started yet."""
        self._console, self._header, self._limit_s = console, header, seconds
        self._reports = {task_id: TaskReport(task_id, Stage.WAITING) for task_id in task_ids}
        self._began_s = time.monotonic()
        self._live: Live | None = None
        self._told: dict[str, tuple[int, bool]] = {}
        self._reasons = set[str]()
        """Why tasks were stopped, of those that lines have told."""
        self._pulse: Pulse | None = None

    def __enter__(self) -> CampaignView:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._screen, console=self._console, refresh_per_second=2
            )
            self._live.__enter__()
        else:
            self._console.print(str(self._header()), soft_wrap=True, highlight=False)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.transient = True
            self._live.stop()

    def update(self, report: TaskReport) -> None:
        """The campaign's `on_event`."""
        self._reports[report.task_id] = report
        if self._live is None:
            self._tell(report)

    def beat(self, pulse: Pulse) -> None:
        """The campaign's `on_pulse`."""
        self._pulse = pulse

    def note(self, line: str) -> None:
        self._console.print(visible(line), soft_wrap=True, highlight=False, markup=False)

    def _tell(self, report: TaskReport) -> None:
        """A line per round and one for the end of each task."""
        round_over = report.tried > 0 and report.stage in (Stage.PROPOSING, Stage.CONFIRMING)
        state = (report.rounds, report.stage.final)
        told = self._told.get(report.task_id) == state
        if not (report.stage.final or round_over) or told:
            return
        self._told[report.task_id] = state
        stopped = report.reason if report.stage is Stage.STOPPED else ""
        if stopped and stopped in self._reasons:  # of the whole campaign
            if report.tried:
                self.note(plain_line(replace(report, reason="")))
            return
        self._reasons.add(stopped)
        self.note(plain_line(report))

    def _screen(self) -> Group:
        # A line that ends at the last column is followed by what a terminal says of Ctrl-C on the
        # next one, of which the cursor knows nothing: the title would be left above the new table.
        return Group(self._table(), "")

    def _table(self) -> Table:
        elapsed_s = time.monotonic() - self._began_s
        rows, title = list(self._reports.values()), str(self._header())
        wide, narrow = (live_table(rows, title, narrow=narrow) for narrow in (False, True))
        table = fitting(self._console, wide, narrow)
        limit = "" if self._limit_s is None else f" of {self._limit_s:.0f}"
        busy = "" if self._pulse is None else f" · {self._pulse}"
        table.caption = f"{elapsed_s:.0f}{limit} s{busy}"
        return table


def plain_line(report: TaskReport) -> str:
    """A report as one line of a log."""
    if report.stage in (Stage.UNSUPPORTED, Stage.INVALID):
        return f"{report.task_id}: {report.stage.value}: {report.reason}"
    figures = f"best {report.speedup or '-'} vs eager, {report.against_compile or '-'} vs compile"
    state = report.verdict if report.stage.final else f"round {report.rounds}"
    line = f"{report.task_id}: {state}, {report.tried}/{report.budget} candidates, {figures}"
    return f"{line} ({report.reason})" if report.reason else line


def leftovers(reports: Sequence[TaskReport]) -> list[str]:
    """A line for every reason why a task was not worked on, or not to its end, and for what kept
    candidates of one from being judged.
    """
    tasks: dict[tuple[Stage, str], list[str]] = {}
    for report in reports:
        if report.reason and report.stage is not Stage.DONE:
            tasks.setdefault((report.stage, report.reason), []).append(report.task_id)
    lines = [f"{_named(ids, stage)}: {reason}" for (stage, reason), ids in tasks.items()]
    lines += [
        f"{r.task_id}: {number_of(r.faults, 'candidate')} not judged: {r.fault}"
        for r in reports
        if r.faults
    ]
    return [visible(line) for line in lines]


def _named(task_ids: Sequence[str], stage: Stage) -> str:
    """One task by its name; several by their number, and by name where the table has no rows."""
    if len(task_ids) == 1:
        return f"{task_ids[0]}: {stage.value}"
    number = f"{number_of(len(task_ids), 'task')} {stage.value}"
    return number if stage is Stage.STOPPED else f"{number} ({', '.join(task_ids)})"


def show_result(console: Console, result: CampaignResult, header: str) -> None:
    """Final table, leftovers and one line of totals."""
    show_reports(console, result.tasks, header)
    wins = sum(report.verdict == "win" for report in result.tasks)
    found = f"{number_of(result.tried, 'candidate')}, {number_of(wins, 'win')}"
    line = f"{found}, {result.seconds:.0f} s"
    told = any(report.reason == result.stopped for report in result.tasks)
    console.print(line if result.stopped is None or told else f"{line}; stopped: {result.stopped}")


def show_reports(console: Console, reports: Sequence[TaskReport], header: str) -> None:
    wide, narrow = (final_table(reports, header, narrow=narrow) for narrow in (False, True))
    console.print(fitting(widened(console), wide, narrow))
    for line in leftovers(reports):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def report_record(report: TaskReport) -> dict[str, Any]:
    """JSON-ready: what the table shows, and the winner's source."""
    best = report.best
    return {
        "task": report.task_id,
        "stage": report.stage.value,
        "verdict": report.verdict,
        "reason": report.reason,
        "candidates": report.tried,
        "speedup": to_record(report.speedup),
        "against_compile": to_record(report.against_compile),
        "confirmed": report.confirmed,
        "proposer": None if best is None else best.proposal.proposer,
        "policy_version": None if best is None else best.proposal.features.get(POLICY_VERSION),
        "best": None if best is None else to_record(best.proposal.candidate),
        "evaluation": to_record(report.figure),
    }


def evaluation_record(evaluation: Evaluation) -> dict[str, Any]:
    """JSON-ready: the whole Evaluation, with its speedup and interval on top."""
    speedup = evaluation.speedup
    top: dict[str, Any] = {
        "status": evaluation.status.value,
        "speedup": None if speedup is None else speedup.value,
        "interval": None if speedup is None else [speedup.low, speedup.high],
    }
    return {**top, **to_record(evaluation)}


def evaluation_lines(evaluation: Evaluation) -> list[str]:
    """An Evaluation for a reader in a hurry."""
    lines = [f"{evaluation.status.value}  {evaluation.task_id}  {evaluation.candidate_id}"]
    if evaluation.detail:
        lines.append(evaluation.detail)
    if (timing := evaluation.timing) is not None:
        times = f"{timing.candidate_ms:.4g} ms, eager {timing.reference_ms:.4g} ms"
        lines.append(f"speedup {timing.speedup} against eager ({times})")
    for baseline in evaluation.baselines:
        if baseline.speedup is not None and evaluation.speedup is not None:
            ratio = evaluation.speedup.divided_by(baseline.speedup)
            lines.append(f"        {ratio} against {baseline.name}")
    if not evaluation.passed:
        for title in ("build_log", "stdout", "stderr"):
            if text := getattr(evaluation, title).strip():
                lines += [f"--- {title}", text]
    return lines
