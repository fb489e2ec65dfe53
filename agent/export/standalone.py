"""A winner as one file that needs neither cupy nor us: `cuda` ones by `load_inline`.

What is converted is another candidate: it is judged and timed again before a figure stands by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.export.artefact import Artefact, decisive
from agent.export.inline.convert import NotConvertible, converted
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Task

Judge = Callable[[Task, Candidate, EvalConfig], Evaluation]
Judges = Callable[[Task], Judge | None]
"""Who judges a task's candidates; None where its device is not here."""


@dataclass(frozen=True)
class Standalone:
    """A kernel as it is exported, and what is known of this very text."""

    artefact: Artefact
    candidate: Candidate
    evaluation: Evaluation | None
    """None for a converted one whose device is not here."""

    @property
    def is_converted(self) -> bool:
        return self.candidate != self.artefact.candidate


def standalone(artefact: Artefact, judge: Judge | None) -> Standalone | str:
    """The kernel, or why there is none; `judge` is None without the task's device."""
    if artefact.candidate.language is not Language.CUDA:
        return Standalone(artefact, artefact.candidate, decisive(artefact))
    try:
        candidate = converted(artefact.candidate)
    except NotConvertible as error:
        return f"cannot be converted to load_inline: {error}"
    if judge is None:
        return Standalone(artefact, candidate, None)
    again = judge(artefact.task, candidate, artefact.config)
    if not again.passed:
        return f"as load_inline it is {again.status.value}: {again.detail}"
    return Standalone(artefact, candidate, again)
