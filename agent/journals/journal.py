"""The journal: every proposal, evaluation, reward and second of a campaign, in one SQLite file.

Append-only and written by one thread of one process. A proposal is recorded before it is
evaluated, so a kill -9 leaves it pending and the next run takes it up first. An evaluation is keyed
by purpose, task hash, candidate, config and environment, and is never repeated. It does not hold
artefacts of builds, and it is not the place for logs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.confirm import told
from agent.journals.recorded import Purpose, Recorded, Recordings
from agent.journals.storage import TABLES, Database, Write
from agent.types import Attempt, Measured, Proposal
from rewards.types import Reward
from sandbox.errors import ConfigError
from sandbox.records import from_record, to_record
from sandbox.types import Evaluation, Task, digest

FILE = "journal.sqlite"
COMMAND = "command"
REPLAY = "replay"
"""Kind of the event for a command line that started or resumed the run; its detail is JSON."""
EVENT = "INSERT INTO events VALUES (NULL, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class Measurement:
    """One evaluation as it was written, whatever version of Evaluation that was."""

    purpose: str
    at_s: float
    """Unix time."""
    record: dict[str, Any]


class Journal:
    """Reads and appends; use as a context manager."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self.folder = folder
        self.path = folder / FILE
        self._database = Database(self.path, read_only=read_only)
        self._recordings = Recordings(self._database)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    @property
    def disk_full(self) -> bool:
        """The disk was found full once: finish what is under way and stop."""
        return self._database.full

    # --- what a campaign is about ---------------------------------------------------------------

    def record_config(self, config: object) -> None:
        """The resolved config, as it was at each start; the first one is `config()`."""
        record = json.dumps(to_record(config), sort_keys=True)

        def body(write: Write) -> None:
            write("INSERT OR IGNORE INTO meta VALUES ('config', ?)", (record,))
            write(EVENT, (time.time(), "start", None, None, None, record))

        self._database.transact(body)

    def config(self) -> dict[str, Any] | None:
        """The record of the config this run was first started with."""
        found: dict[str, Any] | None = self._kept("config")
        return found

    def record_task(self, task: Task) -> None:
        """Raises ConfigError if the run knows another task by this id."""
        query = "SELECT task_hash FROM tasks WHERE task_id = ?"
        row = self._database.execute(query, (task.id,)).fetchone()
        if row is None:
            values = (task.id, task.hash, json.dumps(to_record(task)))
            self._database.transact(
                lambda write: write("INSERT INTO tasks VALUES (?, ?, ?)", values)
            )
        elif row["task_hash"] != task.hash:
            raise ConfigError(
                f"{task.id} is not the task that this run started with; use another --name"
            )

    def record_measured(self, task_id: str, measured: Measured) -> None:
        """What preparing found; the first holds, so that a resumed run asks models the same."""
        if self.measured(task_id) is None:
            detail = json.dumps(to_record(measured), sort_keys=True)
            self.record_event("measured", task_id=task_id, detail=detail)

    def measured(self, task_id: str) -> Measured | None:
        detail = self.last_event("measured", task_id)
        return None if detail is None else from_record(Measured, json.loads(detail))

    def record_facts(self, facts: Mapping[str, str]) -> None:
        """What models are told about the machine; the first holds."""
        self._keep("facts", dict(facts))

    def facts(self) -> dict[str, str]:
        return self._kept("facts") or {}

    def record_memory(self, lines: Sequence[str]) -> None:
        """The technique notes that models may be told of; the first hold, so that a resumed run
        asks alike whatever was noted since.
        """
        self._keep("memory", list(lines))

    def memory(self) -> list[str]:
        return self._kept("memory") or []

    def record_asked(self, task_id: str, round: int, n: int) -> None:
        """How many proposals a round was asked for; the last one holds."""
        self.record_event("asked", task_id=task_id, detail=f"{round} {n}")

    def asked(self, task_id: str) -> dict[int, int]:
        """By round."""
        rows = self._database.execute(
            "SELECT detail FROM events WHERE kind = 'asked' AND task_id = ? ORDER BY id", (task_id,)
        )
        pairs = [str(row["detail"]).split() for row in rows]
        return {int(round): int(n) for round, n in pairs}

    def last_start(self) -> dict[str, Any] | None:
        """The record of the config this run was started with last."""
        starts = self.events("start")
        return json.loads(starts[-1]) if starts else None

    def starts(self) -> int:
        """How often the run was started or resumed."""
        return len(self.events("start"))

    def replays(self) -> str | None:
        """The run that this one replays: its evaluations took their seconds there."""
        return next(iter(self.events(REPLAY)), None)

    def tasks(self) -> list[Task]:
        rows = self._database.execute("SELECT record FROM tasks ORDER BY rowid")
        return [from_record(Task, json.loads(row["record"])) for row in rows]

    # --- proposals, evaluations, rewards --------------------------------------------------------

    def record_proposals(self, round: int, proposals: Sequence[Proposal]) -> None:
        """One round of one task, all or nothing; candidates the run has seen become duplicates."""

        def body(write: Write) -> None:
            for proposal in proposals:
                candidate = proposal.candidate
                fresh = write(
                    "INSERT OR IGNORE INTO candidates VALUES (?, ?, ?, ?)",
                    (candidate.id, candidate.task_id, candidate.language, candidate.source),
                ).rowcount
                row = _proposal_row(round, proposal, duplicate=not fresh)
                marks = ", ".join("?" * len(row))
                write(f"INSERT INTO proposals VALUES (NULL, {marks})", row)

        self._database.transact(body)

    def record_evaluation(
        self,
        task: Task,
        evaluation: Evaluation,
        *,
        purpose: Purpose = Purpose.SEARCH,
        reward: Reward | None = None,
        function: str = "",
    ) -> None:
        """An evaluation with its reward by the named function; a repeated one is ignored."""
        key = (
            purpose.value,
            task.hash,
            evaluation.candidate_id,
            evaluation.config_id,
            digest(dict(evaluation.environment)),
            evaluation.status.value,
        )

        def body(write: Write) -> None:
            added = write(
                "INSERT OR IGNORE INTO evaluations VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
                (time.time(), *key, json.dumps(to_record(evaluation))),
            )
            if added.rowcount and reward is not None:
                write(
                    "INSERT INTO rewards VALUES (NULL, ?, ?, ?, ?)",
                    (added.lastrowid, function, reward.value, json.dumps(to_record(reward))),
                )

        self._database.transact(body)

    def proposals(self, task_id: str) -> list[Recorded]:
        """Every proposal on the task in the order made, with what is known about it."""
        return self._recordings.of(task_id)

    def attempts(self, task_id: str) -> list[Attempt]:
        """What a proposer is told: evaluated proposals in the order made, duplicates left out; what
        a confirmation refuted is what that found.
        """
        return [a for a in map(told, self.proposals(task_id)) if a is not None]

    def measurements(self, candidate_id: str) -> list[Measurement]:
        """Every evaluation of a candidate, in the order made."""
        rows = self._database.execute(
            "SELECT at, purpose, record FROM evaluations WHERE candidate_id = ? ORDER BY id",
            (candidate_id,),
        )
        return [Measurement(row["purpose"], row["at"], json.loads(row["record"])) for row in rows]

    def lags(self, task_id: str) -> dict[str, float]:
        """Seconds from a candidate's first proposal to its first verdict, by candidate; not of one
        between which the run was down.
        """
        rows = self._database.execute(
            "SELECT id, judged - asked AS lag FROM ("
            "SELECT p.candidate_id AS id, MIN(p.at) AS asked, MIN(e.at) AS judged "
            "FROM proposals p JOIN evaluations e USING (candidate_id) "
            "WHERE p.task_id = ? GROUP BY p.candidate_id) "
            "WHERE NOT EXISTS (SELECT 1 FROM events "
            "WHERE kind = 'start' AND events.at > asked AND events.at < judged)",
            (task_id,),
        )
        return {row["id"]: float(row["lag"]) for row in rows}

    # --- events ---------------------------------------------------------------------------------

    def record_event(
        self,
        kind: str,
        *,
        task_id: str | None = None,
        candidate_id: str | None = None,
        seconds: float | None = None,
        detail: str = "",
    ) -> None:
        """A stage that took seconds, or something a reader of the run should know."""
        row = (time.time(), kind, task_id, candidate_id, seconds, detail)
        self._database.transact(lambda write: write(EVENT, row))

    def last_event(self, kind: str, task_id: str) -> str | None:
        """Detail of the newest event of this kind on the task."""
        row = self._database.execute(
            "SELECT detail FROM events WHERE kind = ? AND task_id = ? ORDER BY id DESC LIMIT 1",
            (kind, task_id),
        ).fetchone()
        return None if row is None else str(row["detail"])

    def events(self, kind: str) -> list[str]:
        """Details of all events of this kind, oldest first."""
        query = "SELECT detail FROM events WHERE kind = ? ORDER BY id"
        return [str(row["detail"]) for row in self._database.execute(query, (kind,))]

    def last_of_calls(self, kind: str) -> list[str]:
        """Details of the last event of this kind in every call of the run that has one."""
        query = "SELECT kind, detail FROM events WHERE kind IN ('start', ?) ORDER BY id"
        last: list[str | None] = [None]
        for row in self._database.execute(query, (kind,)):
            if row["kind"] == "start":
                last.append(None)
            else:
                last[-1] = str(row["detail"])
        return [detail for detail in last if detail is not None]

    def seconds_by_kind(self) -> dict[str, float]:
        """Summed over all events of a kind that took time."""
        rows = self._database.execute(
            "SELECT kind, SUM(seconds) AS total FROM events WHERE seconds IS NOT NULL GROUP BY kind"
        )
        return {row["kind"]: row["total"] for row in rows}

    def span(self) -> tuple[float, float] | None:
        """Unix times of the first and the last event, proposal or evaluation; None without any."""
        times = " UNION ALL ".join(
            f"SELECT MIN(at) AS a, MAX(at) AS b FROM {table}"
            for table in ("events", "proposals", "evaluations")
        )
        row = self._database.execute(f"SELECT MIN(a) AS a, MAX(b) AS b FROM ({times})").fetchone()
        return None if row["a"] is None else (row["a"], row["b"])

    def export_jsonl(self, path: Path) -> int:
        """Write every row of every table, one JSON object a line; returns how many."""
        count = 0
        with path.open("w") as stream:
            for table in TABLES:
                for row in self._database.execute(f"SELECT * FROM {table} ORDER BY rowid"):
                    record = {"table": table, **dict(row)}
                    for key in ("record", "parents", "features"):
                        if key in record:
                            record[key] = json.loads(record[key])
                    stream.write(json.dumps(record) + "\n")
                    count += 1
        return count

    # --- rows -----------------------------------------------------------------------------------

    def _keep(self, key: str, value: object) -> None:
        """A fact of the whole run; the first holds."""
        row = (key, json.dumps(value))
        self._database.transact(
            lambda write: write("INSERT OR IGNORE INTO meta VALUES (?, ?)", row)
        )

    def _kept(self, key: str) -> Any:
        """None where nothing was."""
        query = "SELECT value FROM meta WHERE key = ?"
        row = self._database.execute(query, (key,)).fetchone()
        return None if row is None else json.loads(row["value"])


def _proposal_row(round: int, proposal: Proposal, *, duplicate: bool) -> tuple[object, ...]:
    """The columns of `proposals` after the id."""
    usage = proposal.usage
    return (
        time.time(),
        proposal.candidate.task_id,
        round,
        proposal.candidate.id,
        duplicate,
        proposal.proposer,
        proposal.strategy,
        json.dumps(proposal.parents),
        json.dumps(dict(proposal.features)),
        proposal.prompt,
        proposal.reply,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cost_usd,
        usage.seconds,
    )
