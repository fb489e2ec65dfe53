"""Proposals as a journal knows them, each decoded once.

Rows are only added, and a campaign reads all of a task's after every job: without what was decoded
before, the thousandth candidate of a task would take a thousand times as long as the first.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from enum import StrEnum

from agent.journals.storage import Database
from agent.types import Attempt, Proposal, Usage
from rewards.types import Reward
from sandbox.records import from_record
from sandbox.types import Candidate, Evaluation, Language, Status


class Purpose(StrEnum):
    """Why a candidate was measured."""

    SEARCH = "search"
    CONFIRM = "confirm"
    """Measured afresh after it was selected: the figure that may be published."""


@dataclass(frozen=True)
class Recorded:
    """A proposal as the journal knows it."""

    id: int
    round: int
    """Of its task, from 0."""
    proposal: Proposal
    duplicate: bool
    """Its candidate was proposed before; it has no evaluation of its own."""
    evaluation: Evaluation | None = None
    reward: Reward | None = None
    confirmation: Evaluation | None = None

    @property
    def pending(self) -> bool:
        """Proposed and to be evaluated."""
        return not self.duplicate and self.evaluation is None

    @property
    def attempt(self) -> Attempt | None:
        if self.evaluation is None or self.reward is None or self.duplicate:
            return None
        return Attempt(self.proposal, self.evaluation, self.reward)


FIRST = (
    "(SELECT e.id FROM evaluations e "
    "WHERE e.candidate_id = p.candidate_id AND e.purpose = '{}' AND NOT p.duplicate "
    f"ORDER BY e.status = '{Status.SANDBOX_ERROR}', e.id LIMIT 1)"
)
"""The first evaluation for a purpose holds that is no fault of ours, else the first."""
LISTED = (
    f"SELECT p.id, {FIRST.format(Purpose.SEARCH)} AS search, "
    f"{FIRST.format(Purpose.CONFIRM)} AS confirmed "
    "FROM proposals p WHERE p.task_id = ? ORDER BY p.id"
)
PROPOSAL = (
    "SELECT p.*, c.language, c.source FROM proposals p JOIN candidates c USING (candidate_id) "
    "WHERE p.id = ?"
)
EVALUATION = (
    "SELECT e.record, r.record AS reward FROM evaluations e "
    "LEFT JOIN rewards r ON r.evaluation_id = e.id WHERE e.id = ? LIMIT 1"
)


class Recordings:
    """Reads them from a journal's database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[tuple[int, int | None, int | None], Recorded] = {}
        """By the ids of a proposal's own row and of its evaluations'."""

    def of(self, task_id: str) -> list[Recorded]:
        """Every proposal on the task in the order made, with what is known about it."""
        rows = self._database.execute(LISTED, (task_id,)).fetchall()
        return [self._recorded(row["id"], row["search"], row["confirmed"]) for row in rows]

    def _recorded(self, number: int, search: int | None, confirmed: int | None) -> Recorded:
        key = (number, search, confirmed)
        if key not in self._known:
            row = self._database.execute(PROPOSAL, (number,)).fetchone()
            evaluation, reward = self._evaluation(search)
            confirmation, _ = self._evaluation(confirmed)
            proposal, duplicate = _proposal(row), bool(row["duplicate"])
            for before in ((number, None, None), (number, search, None)):
                self._known.pop(before, None)
            self._known[key] = Recorded(
                number, row["round"], proposal, duplicate, evaluation, reward, confirmation
            )
        return self._known[key]

    def _evaluation(self, number: int | None) -> tuple[Evaluation | None, Reward | None]:
        if number is None:
            return None, None
        row = self._database.execute(EVALUATION, (number,)).fetchone()
        reward = None if row["reward"] is None else from_record(Reward, json.loads(row["reward"]))
        return from_record(Evaluation, json.loads(row["record"])), reward


def _proposal(row: sqlite3.Row) -> Proposal:
    return Proposal(
        Candidate(row["task_id"], Language(row["language"]), row["source"]),
        row["proposer"],
        row["strategy"],
        tuple(json.loads(row["parents"])),
        json.loads(row["features"]),
        row["prompt"],
        row["reply"],
        Usage(row["prompt_tokens"], row["completion_tokens"], row["cost_usd"], row["seconds"]),
    )
