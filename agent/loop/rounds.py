"""A round of one task: who is asked, for how much, and what they are told.

All of it is read from the journal before anybody is asked: a proposer answers in a thread of its
own, where the journal may not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.engines.lanes import NoLane
from agent.journals.journal import Journal
from agent.loop.schedule import TaskRun
from agent.model import AwaitingReplies, RepliesMissing
from agent.types import Proposal, Turn


def turn_of(journal: Journal, task_id: str, round: int) -> Turn:
    """What a round is proposed for, beside the attempts so far."""
    repeats = [record.proposal for record in journal.proposals(task_id) if record.duplicate]
    return Turn(round, journal.measured(task_id), repeats)


def proposing(
    journal: Journal, run: TaskRun, round: int, at_most: int
) -> Callable[[NoLane], Sequence[Proposal]]:
    """The round's call: proposers take turns; one that has nothing more passes to the next. A round
    of which every reply is missing from the imported files is exported again.
    """
    history = journal.attempts(run.task.id)
    n = min(at_most, run.budget - len(history))
    first = round % len(run.proposers)
    order = [*run.proposers[first:], *run.proposers[:first]]
    turn = turn_of(journal, run.task.id, round)
    journal.record_asked(run.task.id, round, n)

    def propose(_: NoLane) -> Sequence[Proposal]:
        for proposer in order:
            try:
                proposals = proposer.propose(run.task, history, n, turn)
            except RepliesMissing as missing:
                raise AwaitingReplies(missing.export_again()) from missing
            if proposals:
                return proposals[:n]
        return ()

    return propose
