"""What a strategy would ask next about a task, for a reader: nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.config import OptimizeConfig
from agent.journals.journal import Journal
from agent.keys import nearest
from agent.loop.decisions import next_round
from agent.loop.rounds import turn_of
from agent.memory.notes import note_lines, note_of
from agent.memory.recall import Skills
from agent.model import Model, ScriptedModel
from agent.proposing.model_proposer import ModelProposer
from agent.strategies.types import Ask
from agent.types import Attempt, Turn
from sandbox.errors import ConfigError
from sandbox.types import Task


def next_asks(
    task: Task,
    config: OptimizeConfig,
    facts: Mapping[str, object],
    run: Path | None = None,
) -> Sequence[Ask]:
    """The questions of the next round: of a run in that folder, or of one that begins. Raises
    ConfigError where the run has no such task.
    """
    history: Sequence[Attempt] = ()
    turn = Turn()
    lines = [] if config.memory is None else note_lines(config.memory)
    if run is not None:
        with Journal(run, read_only=True) as journal:
            _check_task(task, journal)
            history = journal.attempts(task.id)
            turn = turn_of(journal, task.id, next_round(journal.proposals(task.id)))
            facts, lines = journal.facts() or facts, journal.memory()
    proposer = asking(config, ScriptedModel([]), facts, lines)
    if (reason := proposer.unsupported(task)) is not None:
        raise ConfigError(f"{reason}: choose another language or another device")
    return proposer.asks(task, history, config.proposals_per_round, turn)


def _check_task(task: Task, journal: Journal) -> None:
    """Raises ConfigError where the run does not work on the task: it would ask nothing about it."""
    known = [each.id for each in journal.tasks()]
    if task.id not in known:
        meant = nearest(task.id, known)
        hint = f"did you mean {meant!r}?" if meant else f"tasks: {', '.join(known) or 'none'}"
        raise ConfigError(f"{journal.folder}: the run has no task {task.id}; {hint}")


def asking(
    config: OptimizeConfig, model: Model, facts: Mapping[str, object], lines: Sequence[str] = ()
) -> ModelProposer:
    """Who asks this model as the config says, told of the notes in these lines."""
    skills = None
    if config.memory is not None:
        notes = [note for note in map(note_of, lines) if note is not None]
        skills = Skills(notes, config.memory)
    return ModelProposer(
        model,
        facts,
        config.asking,
        language=config.language,
        policy=config.evaluation,
        tuning=config.tuning is not None,
        skills=skills,
    )


def asks_text(asks: Sequence[Ask]) -> str:
    """The distinct questions, with who speaks; equal ones are counted."""
    parts, seen = [], list[str]()
    for ask in asks:
        text = "\n\n".join(f"=== {m['role']}\n{m['content']}" for m in ask.messages)
        seen.append(text)
    for ask, text in zip(asks, seen, strict=True):
        title = f"##### {ask.step}, asked {seen.count(text)} time(s)\n{text}"
        if title not in parts:
            parts.append(title)
    return "\n\n".join(parts)
