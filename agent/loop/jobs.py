"""A campaign's jobs under way: handed to its engine and its proposers' threads, awaited, dropped.

Not here: what there is to do (agent/loop/campaign.py), and in which order (agent/loop/schedule.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from agent.engines.engine import Engine
from agent.engines.lanes import LanePool, NoLane
from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from agent.loop.budget import CampaignConfig
from agent.loop.course import Course
from agent.loop.decisions import bar, bar_again
from agent.loop.rounds import proposing
from agent.loop.schedule import Job, Kind, Schedule, TaskRun

PROPOSERS_AT_ONCE = 8
POLL_S = 0.2
"""How soon an interrupt or the end of the time is noticed."""


class Jobs:
    """Touched by one thread only."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        config: CampaignConfig,
        course: Course,
        tasks_at_once: int,
        apart: bool,
    ) -> None:
        """`apart`: as a Schedule takes it."""
        self._engine, self._journal, self._config = engine, journal, config
        self._course, self._apart = course, apart
        # What samples on the lanes' own device does so for all tasks at once.
        thinkers = max(PROPOSERS_AT_ONCE, tasks_at_once if apart else 0)
        self._schedule = Schedule(engine.lanes * engine.depth, thinkers=thinkers, apart=apart)
        self._threads = LanePool("propose", [NoLane] * thinkers)
        self._running: dict[Future[Any], Job] = {}

    def push(
        self,
        run: TaskRun,
        kind: Kind,
        round: int,
        record: Recorded | None = None,
        *,
        retried: bool = False,
    ) -> None:
        """Queue a job, unless its task or the campaign has come to an end."""
        if self._course.allows(kind) and not run.stage.final:
            record_id = 0 if record is None else record.id
            self._schedule.push(Job(round, run.index, kind, record_id, run, record, retried))

    def push_pending(self, run: TaskRun, records: Sequence[Recorded]) -> None:
        for record in records:
            # On the CPU the lane builds: only there a build can stand still in timed regions.
            if record.proposal.candidate.language.needs_build and self._config.device != "cpu":
                self.push(run, Kind.BUILD, record.round, record)
            else:
                self.push_built(run, record)

    def push_built(self, run: TaskRun, record: Recorded) -> None:
        if run.prepared:
            self.push(run, Kind.EVALUATE, record.round, record)
        else:
            run.built.append(record)

    def begin(self) -> Iterator[Job]:
        """Each job that may start now, handed over."""
        for job in self._schedule.begin():
            job.begun_s = time.monotonic()
            self._running[self._submitted(job)] = job
            yield job

    def ended(self) -> Iterator[tuple[Job, Future[Any]]]:
        """Those that ended by now, in the order of jobs; waits POLL_S where none has."""
        done, _ = wait(self._running, timeout=POLL_S, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda f: self._running[f]):
            job = self._running.pop(future)
            if not job.aside:
                self._schedule.ended(job)
            yield job, future

    def drop(self, kinds: Sequence[Kind], run: TaskRun | None = None) -> None:
        """Those of these kinds (of one task) that wait, here or for a lane that is being opened."""
        self._schedule.drop(kinds, run)
        for future, job in list(self._running.items()):
            mine = job.kind is Kind.PREPARE and (run is None or job.run is run)
            if mine and job.kind in kinds and future.cancel():
                self._schedule.ended(self._running.pop(future))

    def set_proposing_aside(self) -> None:
        """No task waits for proposals under way any longer, unless a model makes them on what the
        lanes measure on.
        """
        for job in [] if self._apart else self._running.values():
            if job.kind is Kind.PROPOSE and not job.aside:
                job.aside = True
                self._schedule.ended(job)

    def abandon_proposing(self) -> None:
        """Leaves what is being asked to whoever closes the models: a reply is kept as it comes."""
        for future, job in list(self._running.items()):
            if job.kind is Kind.PROPOSE and not future.done():
                del self._running[future]
                if not job.aside:
                    self._schedule.ended(job)

    def abandon_preparing(self) -> None:
        """Where only tasks are being prepared, and candidates built that nothing will judge, leaves
        them to the engine, if that is safe.
        """
        kinds = {job.kind for job in self._running.values()}
        if kinds and kinds <= {Kind.PREPARE, Kind.BUILD} and self._engine.abandon():
            while self._running:
                self._schedule.ended(self._running.popitem()[1])

    @property
    def proposing(self) -> bool:
        """Something is being proposed, or is to be."""
        queued = self._schedule.queued()
        return queued["to propose"] + queued["proposing"] > 0

    @property
    def any(self) -> bool:
        """Whether something is under way."""
        return bool(self._running)

    def queued(self) -> dict[str, int]:
        return self._schedule.queued()

    def close(self) -> None:
        self._threads.close(grace_s=0.0)

    def _submitted(self, job: Job) -> Future[Any]:
        run, config = job.run, self._config.evaluation
        if job.kind is Kind.PREPARE:
            return self._engine.submit_prepare(run.task, config)
        if job.kind is Kind.PROPOSE:
            count = self._config.proposals_per_round
            return self._threads.submit(proposing(self._journal, run, job.round, count))
        assert job.record is not None
        candidate = job.record.proposal.candidate
        if job.kind is Kind.BUILD:
            return self._engine.submit_build(run.task, candidate, config)
        again = job.kind is Kind.CONFIRM
        if again:
            to_beat = bar_again(self._config)
        else:
            to_beat = bar(self._journal.proposals(run.task.id), job.round, self._config)
        return self._engine.submit_evaluate(run.task, candidate, config, to_beat, elsewhere=again)
