"""A recorded campaign again, from its journal alone: no network, no device, the same decisions.

Replies, figures and evaluations come from the journal; everything that decides (strategies,
prompts, extraction, budgets, rewards, the loop) runs anew into another journal. Where the two
differ, the code or its settings decide otherwise than they did. It does not replay the clock: a
campaign that ran out of time is replayed as far as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from agent.config import OptimizeConfig, validate
from agent.features.proposer import FeatureProposer
from agent.journals.journal import FILE, REPLAY, Journal
from agent.journals.outcome import CampaignResult, Stage
from agent.journals.recorded import Recorded
from agent.loop.campaign import run_campaign
from agent.models.replay import ReplayModel
from agent.proposers import model_proposer
from agent.runs import RUNS, check_name, open_run
from agent.types import FIRST_TURN, Attempt, Measured, Proposal, Proposer, Turn
from sandbox.errors import ConfigError, InvalidReference, SandboxFault
from sandbox.types import Candidate, EvalConfig, Evaluation, Status, Task

T = TypeVar("T")
SHOWN_CHARACTERS = 120


class NotRecorded(SandboxFault):
    """The journal ends here: the campaign was stopped before this evaluation."""


class ReplayEngine:
    """Hands out a journal's evaluations (agent.engines.engine.Engine)."""

    name = "replay"
    lanes = 1
    depth = 1

    def __init__(self, journal: Journal) -> None:
        self._tasks = {task.id: task for task in journal.tasks()}
        self._measured = {id: journal.measured(id) or Measured() for id in self._tasks}
        self._invalid: dict[str, str] = {}
        self._unprepared: set[str] = set()
        """Those of the invalid ones that were so before anything was proposed."""
        self._records: dict[str, Recorded] = {}
        for id in self._tasks:
            records = journal.proposals(id)
            self._records |= {r.proposal.candidate.id: r for r in records if not r.duplicate}
            if (reason := _why_invalid(journal, id)) is not None:
                self._invalid[id] = reason
                if not records:
                    self._unprepared.add(id)

    def submit_prepare(self, task: Task, config: EvalConfig) -> Future[Measured]:
        if task.id in self._unprepared:
            return _failed(InvalidReference(self._invalid[task.id]))
        return _done(self._measured.get(task.id, Measured()))

    def submit_build(self, task: Task, candidate: Candidate, config: EvalConfig) -> Future[None]:
        return _done(None)

    def submit_evaluate(
        self,
        task: Task,
        candidate: Candidate,
        config: EvalConfig,
        to_beat: float | None,
        *,
        elsewhere: bool = False,
    ) -> Future[Evaluation]:
        record = self._records.get(candidate.id)
        evaluation = None
        if record is not None:
            evaluation = record.confirmation if elsewhere else record.evaluation
        if evaluation is None and task.id in self._invalid:
            return _failed(InvalidReference(self._invalid[task.id]))
        if evaluation is None:
            return _failed(NotRecorded("the journal ends here"))
        return _done(evaluation)

    def abandon(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to close."""


class PacedProposer:
    """Another proposer, asked for as many proposals as it was asked for then."""

    def __init__(self, inner: Proposer, journal: Journal) -> None:
        self.inner = inner
        self.name = inner.name
        self.wants_measured = inner.wants_measured
        tasks = journal.tasks()
        self._asked = {task.id: journal.asked(task.id) for task in tasks}
        self._made = {
            task.id: {record.round for record in journal.proposals(task.id)} for task in tasks
        }

    def unsupported(self, task: Task) -> str | None:
        return self.inner.unsupported(task)

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        """Nothing from the round on in which nothing was proposed."""
        if turn.round not in self._made.get(task.id, ()):
            return ()
        return self.inner.propose(task, history, self._asked[task.id].get(turn.round, n), turn)


def replay_run(
    folder: Path, name: str, runs: Path = RUNS
) -> tuple[CampaignResult, list[Difference]]:
    """The run in `folder` again, as run `name`; raises ConfigError where that one exists."""
    if (runs / check_name(name) / FILE).exists():
        raise ConfigError(f"{runs / name}: exists already; use another --name")
    with Journal(folder, read_only=True) as recorded:
        record = recorded.last_start()
        if record is None:
            raise ConfigError(f"{folder}: its journal holds no config, so it cannot be replayed")
        config = replace(
            validate(OptimizeConfig, record, str(folder)), max_seconds=None, engine="local"
        )
        model = ReplayModel(recorded)
        inner: Proposer = FeatureProposer(config.seed, config.features)
        if config.asked or config.local is not None:
            inner = model_proposer(config, model, recorded.facts(), recorded.memory())
        with open_run(name, config, runs) as journal:
            journal.record_event(REPLAY, detail=folder.name)
            journal.record_facts(recorded.facts())
            journal.record_memory(recorded.memory())
            result = run_campaign(
                recorded.tasks(),
                [PacedProposer(inner, recorded)],
                ReplayEngine(recorded),
                journal,
                config.campaign(),
            )
            # A learner's rewards are those of its own function, which a replay has no weights for.
            return result, differences(recorded, journal, rewards=not config.learn)


@dataclass(frozen=True)
class Difference:
    task_id: str
    number: int
    """Of the proposal on its task, from 0."""
    what: str
    recorded: object
    replayed: object

    def __str__(self) -> str:
        was, now = (repr(x)[:SHOWN_CHARACTERS] for x in (self.recorded, self.replayed))
        return f"{self.task_id}, proposal {self.number}: {self.what} was {was}, now {now}"


def differences(recorded: Journal, replayed: Journal, *, rewards: bool = True) -> list[Difference]:
    """The first difference of every task that has one; in rewards too, unless told otherwise."""
    pairs = ((t.id, recorded.proposals(t.id), replayed.proposals(t.id)) for t in recorded.tasks())
    resumed = recorded.starts() > 1
    invalid = {t.id for t in recorded.tasks() if _why_invalid(recorded, t.id) is not None}
    found = (
        _first(_differing(id, was, now, resumed, rewards, id in invalid)) for id, was, now in pairs
    )
    return [difference for difference in found if difference is not None]


def _differing(
    task_id: str,
    was: Sequence[Recorded],
    now: Sequence[Recorded],
    resumed: bool,
    rewards: bool,
    invalid: bool,
) -> Iterable[Difference]:
    # A run that was stopped confirmed its best then; in one go that one need not be the best.
    partly = resumed or any(record.pending for record in was)
    for number, (before, after) in enumerate(zip(was, now, strict=False)):
        left, right = _decisions(before), _decisions(after)
        if partly and after.confirmation is None:
            del left["confirmation"]
        # Which candidates were judged before a task turned out to be invalid is a matter of time.
        unjudged = invalid and (_unknown(before) or _unknown(after))
        if unjudged:
            del left["evaluation"]
        if unjudged or not rewards:
            del left["reward"]
        for what, value in left.items():
            if value != right[what]:
                yield Difference(task_id, number, what, value, right[what])
    if len(was) != len(now):
        yield Difference(task_id, min(len(was), len(now)), "their number", len(was), len(now))


def _why_invalid(journal: Journal, task_id: str) -> str | None:
    """None where its task did not end so."""
    stage, _, reason = (journal.last_event("stage", task_id) or "").partition(" ")
    return reason if stage == Stage.INVALID.value else None


def _unknown(record: Recorded) -> bool:
    """Nothing was found out about it; journals once held that as an evaluation."""
    found = record.evaluation
    return found is None or found.status is Status.INVALID_REFERENCE


def _decisions(record: Recorded) -> dict[str, Any]:
    """All of a row but when it was made, and how long the built-in proposer took."""
    proposal = record.proposal
    usage = proposal.usage
    if proposal.reply is None:
        usage = replace(usage, seconds=0.0)
    return {
        "round": record.round,
        "candidate": proposal.candidate,
        "duplicate": record.duplicate,
        "proposer": proposal.proposer,
        "strategy": proposal.strategy,
        "parents": proposal.parents,
        "features": dict(proposal.features),
        "prompt": proposal.prompt,
        "reply": proposal.reply,
        "usage": usage,
        "evaluation": record.evaluation,
        "reward": record.reward,
        "confirmation": record.confirmation,
    }


def _first(found: Iterable[Difference]) -> Difference | None:
    return next(iter(found), None)


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
