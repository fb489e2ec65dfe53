"""What a run's attempts cost: tokens, money and seconds on a lane, from its journal.

A reply's cost is what it cost when it was bought: one that an earlier run had paid for counts here
too. What this run itself paid, retries and lost requests included, is in its ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from agent.journals.timings import held_seconds
from sandbox.words import number_of


@dataclass(frozen=True)
class Spending:
    replies: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None
    """None where no reply had a price."""
    lane_seconds: float = 0.0
    """For which evaluations held their lane's device: GPU-seconds, where lanes are GPUs."""

    def __add__(self, other: Spending) -> Spending:
        usd = [cost for cost in (self.usd, other.usd) if cost is not None]
        return Spending(
            self.replies + other.replies,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            sum(usd) if usd else None,
            self.lane_seconds + other.lane_seconds,
        )

    def __str__(self) -> str:
        parts = []
        if self.replies:
            tokens = f"{self.prompt_tokens} + {self.completion_tokens} tokens"
            parts.append(f"{number_of(self.replies, 'reply')}, {tokens}")
        if self.usd is not None:
            parts.append(f"${self.usd:.4g}")
        return ", ".join([*parts, f"{self.lane_seconds:.0f} s on a lane"])


def spending(journal: Journal) -> Spending:
    return total(r for task in journal.tasks() for r in journal.proposals(task.id))


def total(records: Iterable[Recorded]) -> Spending:
    replies = prompt = completion = 0
    costs, seconds = list[float](), 0.0
    for record in records:
        usage = record.proposal.usage
        replies += record.proposal.reply is not None
        prompt, completion = prompt + usage.prompt_tokens, completion + usage.completion_tokens
        if usage.cost_usd is not None:
            costs.append(usage.cost_usd)
        for evaluation in (record.evaluation, record.confirmation):
            if evaluation is not None:
                seconds += held_seconds(evaluation)
    return Spending(replies, prompt, completion, sum(costs) if costs else None, seconds)
