"""How good a policy is: one greedy reply to each held-out task, judged as any other kernel.

Figures are those of benches (kernelbench/metrics.py): a task without a kernel that passes counts as
1.0x, since its reference is what would run; intervals are bootstraps over tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.journals.journal import Journal
from agent.types import Attempt
from kernelbench.metrics import mean_over_all
from rl.config import HeldOut, Split
from rl.data import split_of
from sandbox.figures import Interval


@dataclass(frozen=True)
class Judged:
    """One split."""

    split: str
    policy: str
    """Whose replies they are, as the journal names it: with its version, and `transductive` where
    it was trained on evaluated tasks.
    """
    tasks: int
    correct: int
    speedup: Interval
    """Geometric mean against eager over all tasks."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    unjudged: int = 0
    """Further tasks of the split, under way yet or without a verdict by a fault of ours."""

    def __str__(self) -> str:
        failed = ", ".join(f"{n} {s}" for s, n in self.statuses.items() if s != "PASSED")
        return (
            f"{self.split}, {self.policy}: {self.correct} of {self.tasks} correct "
            f"({self.correct / self.tasks:.0%}), {self.speedup.value:.2f}x eager "
            f"({self.speedup.low:.2f} to {self.speedup.high:.2f})"
            + (f"; {failed}" if failed else "")
            + (f"; {self.unjudged} more without a verdict" if self.unjudged else "")
        )


def judged_run(folder: Path, held_out: HeldOut) -> list[Judged]:
    with Journal(folder, read_only=True) as journal:
        return judged(journal, held_out)


def judged(journal: Journal, held_out: HeldOut) -> list[Judged]:
    """Of every split that a run has verdicts of; of tasks without one only how many they are."""
    by_split: dict[Split, list[Attempt]] = {}
    unjudged: Counter[Split] = Counter()
    for task in journal.tasks():
        attempts, split = journal.attempts(task.id), split_of(task, held_out)
        if attempts and attempts[0].evaluation.status.scored:
            by_split.setdefault(split, []).append(attempts[0])
        else:
            unjudged[split] += 1
    return [_judged(split, found, unjudged[split]) for split, found in sorted(by_split.items())]


def _judged(split: str, attempts: Sequence[Attempt], unjudged: int) -> Judged:
    found = [a.evaluation for a in attempts]
    speedups = [e.speedup for e in found]
    return Judged(
        split,
        attempts[0].proposal.proposer,
        len(found),
        sum(e.passed for e in found),
        mean_over_all([None if s is None else s.value for s in speedups]),
        dict(Counter(e.status.value for e in found).most_common()),
        unjudged,
    )
