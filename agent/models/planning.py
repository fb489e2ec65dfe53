"""What a campaign will ask models before it asks: requests, tokens, money, and the caps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.config import OptimizeConfig
from agent.device import resolved
from agent.loop.budget import share_candidates
from agent.model import ScriptedModel
from agent.models.opening import check_models
from agent.models.prices import price_of
from agent.runs import tried_in
from agent.views.asking import asking
from kernelbench.suite import load_suite
from sandbox.doctor import describe
from sandbox.types import Task
from sandbox.words import number_of

CHARACTERS_A_TOKEN = 3.5
"""Of code and English in today's vocabularies, about; the estimate only, never a cap."""
SOURCE_TOKENS = 1500
"""That a later prompt holds beyond the first: a candidate's source and what came of it."""
REPLY_TOKENS = 4000
"""A kernel with its prose, or with some reasoning; long reasoning takes several times as much."""


@dataclass(frozen=True)
class RequestPlan:
    requests: int
    """At most, one for every candidate. A reply that repeats known code is no candidate, another is
    asked for in its place; retries are left out too.
    """
    prompt_tokens: int
    """Of one request, estimated."""
    reply_tokens: int
    usd: float | None
    """Estimated; None where a model has no price."""
    caps: str

    def __str__(self) -> str:
        each = f"about {self.prompt_tokens} + {self.reply_tokens} tokens each"
        cost = "price unknown" if self.usd is None else f"about ${self.usd:.2f}"
        asked = f"up to {number_of(self.requests, 'request')}"
        more = "more for those that fail or repeat known code"
        return f"{asked} ({more}), {each}, {cost}; {self.caps}"


def plan_run(config: OptimizeConfig, name: str) -> RequestPlan:
    """What a call of `warpsmith optimize` under this name will ask; raises ConfigError for what
    would end it before its first request.
    """
    config = resolved(config)
    check_models(config)
    tasks = load_suite(config.tasks, config.device)
    return plan_requests(config, tasks, describe(config.device), tried_in(name))


def plan_requests(
    config: OptimizeConfig, tasks: Sequence[Task], facts: Mapping[str, object], tried: int = 0
) -> RequestPlan:
    """For a run over these tasks, of which `tried` candidates are in the journal already."""
    candidates = sum(share_candidates(config.campaign(), len(tasks)))
    prompts = [_first_prompt(config, task, facts) for task in tasks]
    characters = sum(prompts) / max(1, len(prompts))
    prompt_tokens = math.ceil(characters / CHARACTERS_A_TOKEN) + SOURCE_TOKENS
    limits = [m.max_tokens for m in config.asked]
    reply_tokens = min(REPLY_TOKENS, *(limit or REPLY_TOKENS for limit in limits))
    requests = max(0, candidates - tried)
    return RequestPlan(
        requests,
        prompt_tokens,
        reply_tokens,
        _usd(config, requests, prompt_tokens, reply_tokens),
        _caps(config),
    )


def _first_prompt(config: OptimizeConfig, task: Task, facts: Mapping[str, object]) -> int:
    """Its characters; what was measured is not known yet and adds little."""
    proposer = asking(config, ScriptedModel([]), facts)
    return sum(
        len(message["content"]) for ask in proposer.asks(task, [], 1) for message in ask.messages
    )


def _usd(config: OptimizeConfig, requests: int, prompt: int, reply: int) -> float | None:
    total, weights = 0.0, sum(m.weight for m in config.asked)
    for settings in config.asked:
        price = price_of(settings.name, config.prices)
        if price is None:
            return None
        total += requests * settings.weight / weights * price.cost_usd(prompt, reply)
    return total


def _caps(config: OptimizeConfig) -> str:
    caps = config.caps
    parts = [
        f"{name} {value:g}"
        for name, value in (
            ("max_requests", caps.max_requests),
            ("max_tokens", caps.max_tokens),
            ("max_usd", caps.max_usd),
        )
        if value is not None
    ]
    return "cap: " + ", ".join(parts) if parts else "no cap (--max-requests, --max-usd)"
