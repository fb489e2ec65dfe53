"""From a campaign's journal to notes: its confirmed wins, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from agent.confirm import upheld
from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from agent.memory.features import operators, techniques
from agent.memory.notes import Memory, Note
from agent.prompts.feedback import bottleneck_of
from agent.prompts.hints import CPU_FEATURES, GPU_FEATURES
from agent.strategies.fsr import FEATURE
from agent.types import Measured
from sandbox.figures import Interval
from sandbox.types import Task, digest


def notes_of(journal: Journal, settings: Memory) -> list[Note]:
    """One note of every win that was measured afresh and agreed with the search."""
    found = []
    for task in journal.tasks():
        records = journal.proposals(task.id)
        measured = journal.measured(task.id)
        confirmed = {r.proposal.candidate.id: r for r in records if confirmed_speedup(r)}
        for record in confirmed.values():
            speedup = confirmed_speedup(record)
            if speedup is not None:
                parents = [confirmed[p] for p in record.proposal.parents if p in confirmed]
                found.append(_note(task, record, speedup, parents, measured, settings))
    return found


def confirmed_speedup(record: Recorded) -> Interval | None:
    """Of the confirmation, where it upheld what the search had found."""
    if record.evaluation is None or record.confirmation is None:
        return None
    if not upheld(record.evaluation, record.confirmation):
        return None
    return record.confirmation.speedup


def _note(
    task: Task,
    record: Recorded,
    speedup: Interval,
    parents: Sequence[Recorded],
    measured: Measured | None,
    settings: Memory,
) -> Note:
    candidate, confirmation = record.proposal.candidate, record.confirmation
    assert confirmation is not None
    assert confirmation.timing is not None
    timing = confirmation.timing
    before = [p.value for p in map(confirmed_speedup, parents) if p is not None]
    environment = confirmation.environment
    hardware = environment.get("gpu") or environment.get("cpu") or task.device
    return Note(
        id=digest([task.hash, candidate.id, hardware]),
        task_id=task.id,
        task_hash=task.hash,
        operators=operators(task.source),
        device=task.device,
        hardware=hardware,
        dtype=task.dtype,
        language=candidate.language,
        bottleneck=bottleneck_of(timing.reference_ms, timing.floor_ms, measured),
        techniques=techniques(candidate.source, candidate.language),
        feature=_feature(record),
        speedup=speedup,
        over_parent=speedup.value / max(before) if before else None,
        roofline=None if not timing.floor_ms else timing.floor_ms / timing.candidate_ms,
        source=candidate.source if settings.shows_source(task.id) else None,
    )


def _feature(record: Recorded) -> str:
    """The named feature that the question asked for: one of ours, never a model's words."""
    named = record.proposal.features.get(FEATURE)
    known = {*GPU_FEATURES, *CPU_FEATURES}
    return named if isinstance(named, str) and named in known else ""
