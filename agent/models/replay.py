"""A journal as a model: every prompt is answered as it was answered then, for nothing."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from agent.learner import POLICY_VERSION
from agent.model import ModelError, Reply
from agent.prompts.message import Message
from agent.proposing.asks import arm_of, round_of
from agent.proposing.model_proposer import CUT_OFF, MISSED
from agent.strategies.types import ARM


@dataclass
class ReplayModel:
    """Replies of a journal by prompt and round; a prompt that is not there is an error, since then
    the decisions that led to it differ.
    """

    journal: Journal
    name: str = "replay"
    _replies: dict[tuple[int, str, str], list[Reply | None]] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[tuple[int, str, str], list[Reply | None]] = defaultdict(list)
        for task in self.journal.tasks():
            for record in self.journal.proposals(task.id):
                if record.proposal.reply is not None and record.proposal.prompt is not None:
                    features = record.proposal.features
                    arm, missed = str(features.get(ARM, "")), int(features.get(MISSED, 0))
                    kept = found[record.round, arm, record.proposal.prompt]
                    kept += [None] * (missed - kept.count(None))
                    kept.append(_reply(record))
        self._replies = dict(found)

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        """None where the journal has no reply to the prompt: that request failed then."""
        seen: Counter[str] = Counter()
        replies: list[Reply | None] = []
        for messages in prompts:
            prompt = json.dumps(list(messages), ensure_ascii=False)
            kept = self._replies.get((round_of(draw), arm_of(draw), prompt), [])
            number = seen[prompt]
            seen[prompt] += 1
            replies.append(kept[number] if number < len(kept) else None)
        if prompts and not any(replies):
            raise ModelError("the journal has no reply to what is asked here")
        return replies


def _reply(record: Recorded) -> Reply:
    proposal = record.proposal
    version = proposal.features.get(POLICY_VERSION)
    return Reply(
        text=proposal.reply or "",
        prompt_tokens=proposal.usage.prompt_tokens,
        completion_tokens=proposal.usage.completion_tokens,
        finish_reason="length" if CUT_OFF in proposal.features else "stop",
        seconds=proposal.usage.seconds,
        cost_usd=proposal.usage.cost_usd,
        model=proposal.proposer,
        policy_version=version if isinstance(version, int) else None,
    )
