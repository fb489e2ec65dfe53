"""When weights change: cohorts of tasks take turns, each once all of its tasks have had their round
judged.

With one cohort an update sees all tasks, and nothing else is under way. With more of them
(Learner.ahead) one is sampled and judged while weights learn from another: what the next update
sees was written by weights that are as many updates old, as in one-step off-policy training
(Noukhovitch et al., arXiv 2410.18252). Turns are strict, so that which weights wrote what does not
depend on who was faster.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from agent.journals.journal import Journal
from agent.learner import LEARN, Learner, Lesson, Rollout, record_lesson, rollouts, taught
from agent.loop.schedule import TaskRun
from sandbox.records import from_record


@dataclass(frozen=True)
class _Update:
    cohort: int
    began_s: float
    """time.monotonic"""
    future: Future[Lesson | frozenset[str] | None]
    """A lesson, or the tasks that should have another generation before there is one."""


class Lessons:
    """Of one call of a campaign; all but an update itself is done in its thread."""

    def __init__(
        self,
        journal: Journal,
        learner: Learner,
        runs: Sequence[TaskRun],
        most: int | None = None,
        on_lesson: Callable[[Lesson], None] = lambda _: None,
    ) -> None:
        """`most`: updates that a run gives its weights."""
        self._journal, self._learner, self._most = journal, learner, most
        self._on_lesson = on_lesson
        count = 1 + learner.ahead
        self._cohorts = [[run for run in runs if run.index % count == n] for n in range(count)]
        self._turn = len(journal.events(LEARN)) % count
        self._thread = ThreadPoolExecutor(1, "learn")
        self._update: _Update | None = None
        self._owing: dict[int, list[Rollout] | None] = {}
        """What cohorts that rest have to learn from, as _fresh found it."""

    @property
    def over(self) -> bool:
        """The weights have had all their updates."""
        return taught(self._learner, self._most)

    @property
    def busy(self) -> bool:
        """An update is under way."""
        return self._update is not None

    def step(self, proposing: bool) -> Sequence[TaskRun]:
        """Tasks that are to go on, by new weights or with another generation by the old ones.
        Begins the update that is due, though not while some cohort is `proposing`: it is to have
        one version's proposals. Raises what an update raised.
        """
        if self._update is not None:
            return self._ended() if self._update.future.done() else ()
        for cohort in range(len(self._cohorts)):
            if self._rests(cohort) and (self.over or not self._owes(cohort)):
                return self._active(cohort)
        cohort = self._next()
        if proposing or not self._rests(cohort):
            return ()
        self._begin(cohort)
        return () if len(self._cohorts) > 1 else self._ended()

    def wait(self, seconds: float) -> None:
        """For the update under way, at most so long."""
        if self._update is not None:
            wait([self._update.future], seconds)

    def end(self) -> None:
        """Waits for the update under way, without a word of it."""
        self._thread.shutdown()

    def finish(self, *, learn: bool) -> None:
        """Tells the last update; with `learn`, takes what is left, on whatever was judged."""
        if self._update is not None:
            self._ended()
        for _ in self._cohorts if learn else ():
            if self.over:
                return
            began_s, cohort = time.monotonic(), self._turn
            known, last = rollouts(self._journal), _last(self._journal, cohort)
            lesson = _learned(self._learner, known, self._fresh(cohort), cohort, last)
            self._tell(lesson, began_s)
            self._turn = (cohort + 1) % len(self._cohorts)

    def _active(self, cohort: int) -> list[TaskRun]:
        return [run for run in self._cohorts[cohort] if run.active]

    def _rests(self, cohort: int) -> bool:
        active = self._active(cohort)
        return bool(active) and all(run.resting for run in active)

    def _next(self) -> int:
        """Whose turn it is: of those that have active tasks."""
        count = len(self._cohorts)
        order = [(self._turn + n) % count for n in range(count)]
        return next((cohort for cohort in order if self._active(cohort)), self._turn)

    def _owes(self, cohort: int) -> bool:
        """Whether it rests for an update, and not because its first round is to begin."""
        if cohort not in self._owing and (fresh := self._fresh(cohort)) != []:
            self._owing[cohort] = fresh
        return cohort in self._owing

    def _fresh(self, cohort: int) -> list[Rollout] | None:
        """What it has not learned from: by the weights since its last lesson. None where it is the
        only one, and the learner knows.
        """
        if len(self._cohorts) == 1:
            return None
        last = _last(self._journal, cohort)
        since = 0 if last is None else last.version
        tasks = {run.task.id for run in self._cohorts[cohort]}
        return [r for r in rollouts(self._journal) if r.task_id in tasks and r.version >= since]

    def _begin(self, cohort: int) -> None:
        began_s, known = time.monotonic(), rollouts(self._journal)
        fresh, last = self._owing[cohort], _last(self._journal, cohort)
        able = {run.task.id for run in self._active(cohort)}

        def update() -> Lesson | frozenset[str] | None:
            again = self._learner.again(known, fresh) & able
            return again or _learned(self._learner, known, fresh, cohort, last)

        if len(self._cohorts) > 1:
            future = self._thread.submit(update)
        else:  # There is nothing else to do.
            future = Future()
            future.set_result(update())
        self._update = _Update(cohort, began_s, future)

    def _ended(self) -> Sequence[TaskRun]:
        assert self._update is not None
        update, self._update = self._update, None
        result, cohort = update.future.result(), update.cohort
        active = self._active(cohort)
        del self._owing[cohort]
        if isinstance(result, frozenset):
            return [run for run in active if run.task.id in result]
        self._tell(result, update.began_s)
        self._turn = (cohort + 1) % len(self._cohorts)
        return active

    def _tell(self, lesson: Lesson | None, began_s: float) -> None:
        if lesson is not None:
            record_lesson(self._journal, lesson, time.monotonic() - began_s)
            self._on_lesson(lesson)


def _learned(
    learner: Learner,
    known: Sequence[Rollout],
    fresh: Sequence[Rollout] | None,
    cohort: int,
    last: Lesson | None,
) -> Lesson | None:
    """One update. None where the cohort's last one found nothing in these very rollouts, as where a
    run that has ended is called again.
    """
    count = sum(r.version == learner.version for r in known) if fresh is None else len(fresh)
    in_vain = (learner.version, count, 0)
    if last is not None and (last.version, last.rollouts, last.groups) == in_vain:
        return None
    return learner.learn(known, fresh, cohort)


def _last(journal: Journal, cohort: int) -> Lesson | None:
    """The cohort's last lesson."""
    lessons = [from_record(Lesson, json.loads(detail)) for detail in journal.events(LEARN)]
    return next((lesson for lesson in reversed(lessons) if lesson.cohort == cohort), None)
