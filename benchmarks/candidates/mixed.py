"""A stream of distinct candidates for built-in tasks: feature kernels, right, spoilt and broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from agent.features.proposer import FeatureProposer
from benchmarks.candidates.probe import spoil
from sandbox.types import Candidate, Language, Status, Task

AT_ONCE = 4
"""Tasks whose candidates alternate, as in a campaign; an evaluator keeps so many prepared."""
VARIANTS = 16
"""Of a task's kernels, in different features, at most; beyond it sources differ in a comment."""
KINDS = ("right",) * 7 + ("half output", "stale buffer", "no kernel")
"""Of ten candidates in a row; the last does not compile."""


@dataclass(frozen=True)
class Sample:
    task: Task
    candidate: Candidate
    kind: str
    expected: Status


def mixed(tasks: Sequence[Task], count: int, salt: str = "") -> list[Sample]:
    """`count` samples over those tasks that the feature proposer covers; `salt` makes a stream's
    sources differ from another's, so that no cache knows them.
    """
    makers = FeatureProposer(seed=0)
    able = [task for task in tasks if makers.unsupported(task) is None]
    if not able:
        raise ValueError("the feature proposer covers none of these tasks")
    each = -(-count // len(able))
    samples: list[Sample] = []
    for first in range(0, len(able), AT_ONCE):
        group = able[first : first + AT_ONCE]
        lines = [list(_samples(makers, task, each, salt)) for task in group]
        samples += [sample for row in zip(*lines, strict=True) for sample in row]
    return samples[:count]


def _samples(proposer: FeatureProposer, task: Task, count: int, salt: str) -> Iterator[Sample]:
    honest = cycle(proposal.candidate for proposal in proposer.propose(task, [], VARIANTS))
    kinds = cycle(KINDS)
    for number in range(count):
        made, kind = next(honest), next(kinds)
        source, language = made.source, made.language
        text = f"# {salt}{number}\n{_made(source, kind, language)}"
        # Half of a half is the same.
        same = kind == "half output" and task.dtype == "float16"
        expected = EXPECTED["right" if same else kind]
        yield Sample(task, Candidate(task.id, language, text), kind, expected)


def _made(source: str, kind: str, language: Language) -> str:
    if kind == "right":
        return source
    if kind == "no kernel":
        keyword = "__global__" if language is Language.CUDA else "#include"
        if keyword not in source:
            raise ValueError(f"no {keyword} in a {language.value} source")
        return source.replace(keyword, "no such word", 1)
    imported = "" if "import torch\n" in source else "import torch\n"
    return imported + spoil(source, kind)


EXPECTED = {
    "right": Status.PASSED,
    "half output": Status.WRONG_DTYPE,
    "stale buffer": Status.WRONG_VALUE,
    "no kernel": Status.COMPILE_ERROR,
}
