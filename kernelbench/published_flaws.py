"""Which KernelBench problems others have published as flawed: problem numbers by level, as data.

Each list used its own version of the problems, criteria and tolerance, so that two of them agree on
few problems. `redundant` lists name work that can be left out, which is no reason not to score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedList:
    name: str
    source: str
    criterion: str
    degenerate: bool
    """What it calls flawed should not be scored; False where only some work is redundant."""
    problems: Mapping[int, tuple[int, ...]]
    """By level."""

    @property
    def ids(self) -> set[str]:
        """`level1/23` and so on."""
        return {f"level{level}/{n}" for level, found in self.problems.items() for n in found}


METR = PublishedList(
    "METR",
    "METR, 'Measuring Automated Kernel Engineering' (2025): 45 of 270 problems removed",
    "outputs within 0.01 of zero, of low variance over seeds, or constant along an axis; "
    "mean-of-softmax identities; hidden state; first version of the problems",
    True,
    {
        1: (8, 12, 23, 37, 39, 50, 77, 90, 95, 97),
        2: (9, 13, 23, 27, 36, 38, 41, 44, 45, 49, 58, 66, 77, 80, 83, 84, 89, 91, 93, 96),
        3: (3, 5, 7, 11, 12, 18, 28, 32, 34, 35, 45, 46, 47),
    },
)
ROBUST = PublishedList(
    "robust-kbench",
    "Lange et al. 2025, arXiv 2509.14279, SakanaAI/robust-kbench: range, std, axis and "
    "input-sensitivity filters; level 3 not filtered",
    "small range, low standard deviation, low variation along an axis, insensitive to the inputs",
    True,
    {
        1: (23, 37, 38, 39, 50, 94, 96, 97, 98),
        2: (9, 13, 23, 27, 36, 41, 44, 48, 49, 58, 66, 80, 84, 88, 89, 91, 96),
    },
)
ROBUST_REDUNDANT = PublishedList(
    "robust-kbench, redundant",
    "Lange et al. 2025, SakanaAI/robust-kbench: operations a language model judged redundant",
    "a part of the operations makes no difference",
    False,
    {
        1: (14, 15, 87, 92),
        2: (
            *(2, 4, 7, 18, 20, 22, 25, 27, 29, 39, 40, 42, 44, 49, 53, 54, 57, 62, 64, 69, 72),
            *(74, 76, 79, 81, 87, 93, 94, 95),
        ),
    },
)
PR_108 = PublishedList(
    "KernelBench pull request 108, constant",
    "ScalingIntelligence/KernelBench pull request 108 (open)",
    "the output is constant",
    True,
    {2: (23, 80, 83)},
)
PR_108_REDUNDANT = PublishedList(
    "KernelBench pull request 108, redundant",
    "ScalingIntelligence/KernelBench pull request 108 (open)",
    "redundant operations (level 2), dead code (level 3)",
    False,
    {2: (7, 44, 81, 95), 3: (36, 37, 49)},
)
ISSUE_165 = PublishedList(
    "KernelBench issue 165",
    "ScalingIntelligence/KernelBench issue 165",
    "zeros pass at tolerance 1e-2",
    True,
    {1: (23, 37, 39, 53)},
)
STATE = PublishedList(
    "KernelBench, hidden state",
    "METR's list of level 3; the problems' text",
    "the reference keeps state between calls (33) or draws random numbers in forward (35)",
    True,
    {3: (33, 35)},
)
PUBLISHED = (METR, ROBUST, PR_108, ISSUE_165, STATE, ROBUST_REDUNDANT, PR_108_REDUNDANT)


def degenerate_ids() -> frozenset[str]:
    """`level1/23` and so on: what any of the lists calls degenerate."""
    return frozenset[str]().union(*(found.ids for found in PUBLISHED if found.degenerate))


def is_degenerate(task_id: str) -> bool:
    """Of `kernelbench/level1/23_Softmax`; False for tasks of other suites."""
    suite, _, rest = task_id.partition("/")
    return suite == "kernelbench" and rest.partition("_")[0] in degenerate_ids()
