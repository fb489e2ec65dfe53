"""The campaign loop: propose, build, measure, reward, record; tasks side by side, each in rounds.

What is decided (agent/loop/decisions.py) depends on the journal alone: a round is proposed when the
round before it is complete, and compared with the best of earlier rounds, so that every engine
decides alike and a resumed run goes on as if it had not been killed. A few tasks are under way at
once, since evaluators keep a few references warm; a task that has used up its even share of the
time left is given no further round. A task's winner is measured afresh after it was selected
(docs/measuring.md), for which the last part of `max_seconds` is kept. Strategies live in proposers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from agent.confirm import winner_of
from agent.engines.engine import Engine, sandbox_error
from agent.engines.idle import Idle
from agent.engines.lanes import LaneLost
from agent.journals.journal import Journal
from agent.journals.outcome import INTERRUPTED, CampaignResult, Stage, TaskReport, report
from agent.journals.recorded import Purpose, Recorded
from agent.journals.timings import Heart, Pulse
from agent.learner import Learner, Lesson, catch_up, reward_of, taught
from agent.loop.budget import CampaignConfig, first_candidates, share_seconds
from agent.loop.course import Course
from agent.loop.decisions import (
    SEARCH_OVER,
    Await,
    Confirm,
    End,
    Propose,
    doubtful,
    next_round,
    next_step,
    search_over,
    unjudged,
)
from agent.loop.examine import ended, examine
from agent.loop.jobs import POLL_S, Jobs
from agent.loop.lessons import Lessons
from agent.loop.schedule import Job, Kind, TaskRun
from agent.loop.waves import Waves
from agent.model import AwaitingReplies, ModelError
from agent.types import Proposal, Proposer
from sandbox.errors import DeviceError, InvalidReference, SandboxFault, TaskError, WarpsmithError
from sandbox.types import Evaluation, Status, Task

log = logging.getLogger(__name__)

TASKS_AT_ONCE = 4
"""As many as an evaluator keeps prepared."""


def run_campaign(
    tasks: Sequence[Task],
    proposers: Sequence[Proposer],
    engine: Engine,
    journal: Journal,
    config: CampaignConfig,
    on_event: Callable[[TaskReport], None] = lambda _: None,
    interrupted: Callable[[], bool] = lambda: False,
    on_pulse: Callable[[Pulse], None] = lambda _: None,
    on_lesson: Callable[[Lesson], None] = lambda _: None,
    learner: Learner | None = None,
    apart: bool = False,
    at_endpoints: bool = False,
) -> CampaignResult:
    """Work on every task until its budget or its proposers end; resumes whatever the journal holds.

    `on_event` hears of every change of a task, `on_pulse` how busy the lanes are, `on_lesson` what
    a `learner` learned: as Lessons says, and once at the end. `apart`: as a Schedule takes it.
    `at_endpoints`: whoever proposes asks servers, for whom an interrupt does not wait. Raises
    DeviceError, NoLaneLeft or DiskFull where nothing more can be done; all that was finished is
    then in the journal.
    """
    began_s = time.monotonic()
    runs = examine(tasks, proposers, interrupted)
    able_runs = [run for run in runs if run.proposers]
    waves = Waves(journal, config)
    catch_up(journal, learner)
    for run, share in zip(able_runs, first_candidates(config, len(able_runs)), strict=True):
        run.budget = share + waves.granted(run.task.id)
        run.taught = taught(learner, config.max_updates)
        if learner is None and not waves.begun:  # Else something was concluded from faults too.
            run.again = unjudged(journal.proposals(run.task.id))
    if interrupted() or ended(able_runs, journal, config, waves.open):
        engine = Idle(engine.name)
    return _Campaign(
        runs,
        waves,
        engine,
        journal,
        config,
        on_event,
        interrupted,
        on_pulse,
        on_lesson,
        learner,
        apart,
        at_endpoints,
        began_s,
    ).run()


@dataclass(eq=False)
class _Campaign:
    """The state of one call of `run_campaign`; all of it is touched by one thread only."""

    runs: Sequence[TaskRun]
    waves: Waves
    engine: Engine
    journal: Journal
    config: CampaignConfig
    on_event: Callable[[TaskReport], None]
    interrupted: Callable[[], bool]
    on_pulse: Callable[[Pulse], None]
    on_lesson: Callable[[Lesson], None]
    learner: Learner | None
    apart: bool
    at_endpoints: bool
    began_s: float

    def __post_init__(self) -> None:
        engine, config = self.engine, self.config
        self.heart = Heart(self.journal, engine.lanes, self.on_pulse)
        self.tasks_at_once = config.tasks_at_once or max(TASKS_AT_ONCE, 2 * engine.lanes)
        self.course = Course(self.journal, config, self.interrupted, self.began_s)
        self.jobs = Jobs(engine, self.journal, config, self.course, self.tasks_at_once, self.apart)
        self.waiting = deque(run for run in self.runs if run.proposers)
        self.lessons: Lessons | None = None
        if self.learner is not None:
            self.lessons = Lessons(
                self.journal, self.learner, self.waiting, config.max_updates, self.on_lesson
            )
        self.proven = False
        """Some candidate was judged, so the device and a compiler work."""

    def run(self) -> CampaignResult:
        try:
            for run in self.runs:
                self.journal.record_task(run.task)
                if not run.proposers:
                    self._enter(run, Stage.UNSUPPORTED, run.reason)
            while True:
                self._check_limits()
                self._begin_tasks()
                self._learn()
                self._grant_if_all_wait()
                for job in self.jobs.begin():
                    self._enter(job.run, job.kind.stage)
                if self.course.stopped is not None:
                    self.jobs.abandon_preparing()  # Candidates will not come.
                if not self.jobs.any and not self._learning and not self._may_begin:
                    break
                if not self.jobs.any and self.lessons is not None:
                    self.lessons.wait(POLL_S)
                for job, future in self.jobs.ended():
                    self._finish(job, future)
                self.heart.beat(self.jobs.queued())
            self.heart.beat(self.jobs.queued(), last=True)
        finally:
            self.jobs.close()
            if self.lessons is not None:
                self.lessons.end()
        for run in self.runs:
            if not run.stage.final:
                why = "awaiting other tasks' replies" if run.awaiting else SEARCH_OVER
                self._enter(run, Stage.STOPPED, self.course.stopped or why)
        if self.course.failure is not None:
            raise self.course.failure
        if self.lessons is not None:  # What was judged in time is not for nothing.
            self.lessons.finish(learn=self.course.searched)
        rows = tuple(self._report(run) for run in self.runs)
        cut = next((row.reason for row in rows if row.reason == SEARCH_OVER), None)
        awaiting = any(run.owed for run in self.runs)
        stopped, seconds = self.course.stopped or cut, time.monotonic() - self.began_s
        return CampaignResult(rows, seconds, stopped, awaiting)

    # --- limits ---------------------------------------------------------------------------------

    def _check_limits(self) -> None:
        if self.course.look():
            self._drop_disallowed()
            if self.course.stopped == INTERRUPTED and self.at_endpoints:
                self.jobs.abandon_proposing()
            if self.course.stopped is None:  # What is left of the time is for confirmations.
                self.jobs.set_proposing_aside()
            for run in self.runs:
                if run.begun:
                    self._advance(run)

    def _fail(self, error: WarpsmithError) -> None:
        self.course.fail(error)
        self._drop_disallowed()

    def _drop_disallowed(self) -> None:
        self.jobs.drop([kind for kind in Kind if not self.course.allows(kind)])

    # --- one task -------------------------------------------------------------------------------

    @property
    def _may_begin(self) -> bool:
        return bool(self.waiting) and self.course.searching

    def _begin_tasks(self) -> None:
        """Keep `tasks_at_once` under way; each begins with an even share of the time left."""
        active = sum(run.active for run in self.runs)
        while self._may_begin and active < self.tasks_at_once:
            left = len(self.waiting) + active
            run = self.waiting.popleft()
            run.begun = True
            now_s = time.monotonic()
            share_s = share_seconds(self.config, now_s - self.began_s, left, self.tasks_at_once)
            run.search_until_s = None if share_s is None else now_s + share_s
            self._begin(run)
            active += run.active

    def _begin(self, run: TaskRun) -> None:
        records = self.journal.proposals(run.task.id)
        self.proven = self.proven or any(
            r.evaluation is not None and r.evaluation.status is not Status.SANDBOX_ERROR
            for r in records
        )
        pending = [r for r in records if r.pending or r in run.again]
        over = not pending and search_over(run, records, self.config)
        if not over or (self.config.confirm and winner_of(records) is not None):
            self.jobs.push(run, Kind.PREPARE, pending[0].round if pending else next_round(records))
        if over:
            self._advance(run)
        elif pending:
            self.jobs.push_pending(run, pending)
        elif (doubted := doubtful(records, self.config)) is not None:
            self.jobs.push(run, Kind.CONFIRM, doubted.round, doubted)
        elif not any(p.wants_measured for p in run.proposers):
            # Else the first round is pushed once preparing has ended.
            self._go_on(run, next_round(records))

    def _advance(self, run: TaskRun) -> None:
        """Decide what comes next, once nothing of this task is outstanding."""
        if run.outstanding or run.stage.final or self.course.stopped is not None:
            return
        run.awaiting = False
        records = self.journal.proposals(run.task.id)
        late = run.search_until_s is not None and time.monotonic() >= run.search_until_s
        searching, waves = self.course.searching, self.waves.open
        step = next_step(run, records, self.config, searching=searching, late=late, waves=waves)
        match step:
            case Propose(round):
                self._go_on(run, round)
            case Confirm(record):
                self.jobs.push(run, Kind.CONFIRM, record.round, record)
            case Await():
                self._enter(run, Stage.WAITING, "for a further share")
                run.awaiting = True
            case End(stage, reason):
                self._enter(run, stage, reason)

    def _go_on(self, run: TaskRun, round: int) -> None:
        """Another round, at once or by the next weights; an episode's turns have the same ones."""
        if self.learner is None or round % self.learner.turns:
            self.jobs.push(run, Kind.PROPOSE, round)
        else:
            run.resting = True

    def _learn(self) -> None:
        """Tasks whose rollouts were learned from go on, if the weights are to learn any further."""
        if self.lessons is None or not (self.course.searching or self._learning):
            return
        for run in self.lessons.step(self.jobs.proposing):
            run.resting, run.taught = False, self.lessons.over
            if run.taught:
                self._advance(run)
            else:
                self.jobs.push(run, Kind.PROPOSE, next_round(self.journal.proposals(run.task.id)))
        if self.lessons.over:
            for run in self.waiting:
                run.taught = True

    @property
    def _learning(self) -> bool:
        return self.lessons is not None and self.lessons.busy

    def _grant_if_all_wait(self) -> None:
        """A wave is decided on when every task has had its share: whose round it is must not depend
        on who was faster.
        """
        awaiting = [run for run in self.runs if run.awaiting]
        if not awaiting or self.waiting or self.course.stopped is not None:
            return
        if any(run.active or run.owed for run in self.runs):
            return
        ids = [run.task.id for run in self.runs]
        stopped = {run.task.id: run.budget for run in self.runs if run.stage is Stage.STOPPED}
        grants = self.waves.grant([run.task.id for run in awaiting], ids, stopped)
        for run in awaiting:
            count = grants.get(run.task.id, 0)
            if count:
                run.budget += count
                run.search_until_s, run.awaiting = None, False
                self._search_on(run)
            elif not grants:
                self._advance(run)

    def _search_on(self, run: TaskRun) -> None:
        """Another round of a task that this call may not have prepared yet."""
        records = self.journal.proposals(run.task.id)
        if not run.prepared:
            self.jobs.push(run, Kind.PREPARE, next_round(records))
        if run.prepared or not any(p.wants_measured for p in run.proposers):
            self._go_on(run, next_round(records))

    # --- jobs -----------------------------------------------------------------------------------

    def _finish(self, job: Job, future: Future[Any]) -> None:
        run = job.run
        self.journal.record_event(
            job.kind.name.lower(),
            task_id=run.task.id,
            candidate_id=None if job.record is None else job.record.proposal.candidate.id,
            seconds=time.monotonic() - job.begun_s,
            detail="" if future.exception() is None else str(future.exception()),
        )
        try:
            result = future.result()
        except WarpsmithError as error:
            self._failed(job, error)
        else:
            self._succeeded(job, result)
        self._advance(run)

    def _succeeded(self, job: Job, result: Any) -> None:
        run = job.run
        if job.kind is Kind.PROPOSE:
            self._proposed(run, job.round, result)
        elif job.kind is Kind.PREPARE:
            run.prepared = True
            self.journal.record_measured(run.task.id, result)
            built, run.built = run.built, []
            for record in built:
                self.jobs.push_built(run, record)
        elif job.record is not None and job.kind is Kind.BUILD:
            self.jobs.push_built(run, job.record)
        elif job.record is not None:
            self._evaluated(job, job.record, result)

    def _proposed(self, run: TaskRun, round: int, proposals: Sequence[Proposal]) -> None:
        if not proposals:
            run.exhausted = True
            return
        self.journal.record_proposals(round, proposals)
        self.jobs.push_pending(run, [r for r in self.journal.proposals(run.task.id) if r.pending])

    def _evaluated(self, job: Job, record: Recorded, evaluation: Evaluation) -> None:
        run = job.run
        if evaluation.status is Status.SANDBOX_ERROR and not job.retried:
            self.jobs.push(run, job.kind, job.round, record, retried=True)
            return
        if evaluation.status is Status.INVALID_REFERENCE:
            # Nothing is known of the candidate: another call, with more room, say, may judge it.
            self._end(run, Stage.INVALID, evaluation.detail)
            return
        self.proven = self.proven or evaluation.status is not Status.SANDBOX_ERROR
        self.heart.count(evaluation)
        if job.kind is Kind.CONFIRM:
            self.journal.record_evaluation(run.task, evaluation, purpose=Purpose.CONFIRM)
        else:
            reward, function = reward_of(self.learner, record, evaluation)
            self.journal.record_evaluation(run.task, evaluation, reward=reward, function=function)
        self.on_event(self._report(run))

    def _failed(self, job: Job, error: WarpsmithError) -> None:
        run = job.run
        if isinstance(error, InvalidReference | TaskError):
            self._end(run, Stage.INVALID, str(error))
        elif job.kind is Kind.PREPARE and isinstance(error, SandboxFault) and not job.retried:
            self.jobs.push(run, job.kind, job.round, retried=True)
        elif isinstance(error, ModelError) and not isinstance(error, AwaitingReplies):
            run.halted = str(error)
        elif job.kind is Kind.BUILD and isinstance(error, DeviceError | SandboxFault | LaneLost):
            assert job.record is not None
            # Its evaluation builds it, and says what is missing.
            self.jobs.push_built(run, job.record)
        elif job.kind is Kind.PROPOSE or isinstance(error, SandboxFault | LaneLost):
            run.owed = isinstance(error, AwaitingReplies)
            self._end(run, Stage.STOPPED, str(error))
        elif job.record is None or not isinstance(error, DeviceError):
            self._fail(error)
        elif self.proven:  # One language's compiler is missing: the others can go on.
            candidate = job.record.proposal.candidate
            missing = sandbox_error(candidate, self.config.evaluation, error)
            job.retried = True
            self._evaluated(job, job.record, missing)
        else:
            self._fail(error)

    # --- what others see ------------------------------------------------------------------------

    def _end(self, run: TaskRun, stage: Stage, reason: str) -> None:
        self.jobs.drop(list(Kind), run)
        self._enter(run, stage, reason)

    def _enter(self, run: TaskRun, stage: Stage, reason: str = "") -> None:
        if run.stage.final or (run.stage is stage and not stage.final):
            return
        run.stage, run.reason = stage, reason
        self.journal.record_event(
            "stage", task_id=run.task.id, detail=f"{stage.value} {reason}".strip()
        )
        self.on_event(self._report(run))

    def _report(self, run: TaskRun) -> TaskReport:
        records = self.journal.proposals(run.task.id)
        return report(run.task.id, run.stage, records, budget=run.budget, reason=run.reason)
