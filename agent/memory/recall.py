"""Which notes a prompt about a task shows. Pure.

Okapi BM25 (Robertson & Zaragoza 2009, "The probabilistic relevance framework", section 3.4) over
what a task is made of: its operators, its dtype, what bounds it. Only notes of the same kind of
device count, of each task the fastest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent.memory.features import operators
from agent.memory.notes import Memory, Note
from agent.prompts.feedback import UNKNOWN, bottleneck_of
from agent.types import Measured
from sandbox.types import Task

K1, B = 1.2, 0.75
"""Robertson & Zaragoza's usual values; a term is in a note or not, so K1 matters little."""


@dataclass(frozen=True)
class Recalled:
    """What a prompt says of earlier campaigns."""

    lines: tuple[str, ...] = ()
    source: str | None = None
    """Kernel of the first line's note, where the settings show it."""


@dataclass(frozen=True)
class Skills:
    """A campaign's notes, as they were when it began."""

    notes: Sequence[Note]
    settings: Memory

    def about(self, task: Task, measured: Measured | None) -> Recalled:
        found = ranked(self.notes, task, measured)[: self.settings.recalled]
        source = None
        if found and self.settings.shows_source(found[0].task_id):
            source = found[0].source
        return Recalled(tuple(words(note) for note in found), source)


def ranked(notes: Sequence[Note], task: Task, measured: Measured | None) -> list[Note]:
    """Those that have something in common with the task, the most alike first."""
    able = _fastest_of_each([note for note in notes if note.device == task.device])
    eager_ms = None if measured is None else measured.eager_ms
    bound = bottleneck_of(eager_ms, None if measured is None else measured.floor_ms, measured)
    wanted = set(_terms(operators(task.source), task.dtype, bound))
    documents = [_terms(note.operators, note.dtype, note.bottleneck) for note in able]
    held = Counter(term for document in documents for term in set(document))
    usual = sum(map(len, documents)) / max(1, len(documents))
    scores = []
    for document in documents:
        length = K1 * (1 - B + B * len(document) / usual)
        shared = sorted(wanted & set(document))
        scores.append(
            sum(_idf(held[t], len(documents)) * (K1 + 1) / (1 + length) for t in shared)
            if any(not term.startswith("of ") for term in shared)
            else 0.0
        )
    order = sorted(range(len(able)), key=lambda i: (-scores[i], -able[i].speedup.low, able[i].id))
    return [able[i] for i in order if scores[i] > 0]


def words(note: Note) -> str:
    """One line of a prompt."""
    how = ", ".join(note.techniques) or "no technique that its text shows"
    asked = f" (asked for: {note.feature})" if note.feature else ""
    bound = "" if note.bottleneck == UNKNOWN else f", {note.bottleneck}"
    line = (
        f"{', '.join(note.operators)} in {note.dtype}{bound}: "
        f"{note.language.value} with {how}{asked}: {note.speedup} against eager"
    )
    if note.over_parent is not None:
        line += f", {note.over_parent:.2f}x of what it was made from"
    if note.roofline is not None:
        line += f", {100 * note.roofline:.0f} % of the roofline"
    return f"{line} on {note.hardware}"


def _terms(operators: Sequence[str], dtype: str, bottleneck: str) -> list[str]:
    # A dtype or a bound alone makes no likeness: these begin with "of".
    return [*operators, f"of {dtype}", f"of {bottleneck}"]


def _idf(holding: int, documents: int) -> float:
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def _fastest_of_each(notes: Sequence[Note]) -> list[Note]:
    best: dict[tuple[str, str], Note] = {}
    for note in notes:
        key = (note.task_hash, note.language.value)
        if key not in best or note.speedup.low > best[key].speedup.low:
            best[key] = note
    return list(best.values())
