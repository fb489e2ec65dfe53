"""The language-model proposer: a strategy's questions to a model, its replies as proposals.

It knows strategies and prompts, not endpoints: any `Model` serves. It keeps no state of its own, so
a resumed campaign goes on from the journal alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.learner import POLICY_VERSION
from agent.memory.recall import Recalled, Skills
from agent.model import Model, Reply
from agent.prompts.render import NO_CODE, TITLES, Scene
from agent.proposing.asks import answers
from agent.proposing.replies import extract
from agent.strategies.fsr import Fsr
from agent.strategies.novelty import normal_form
from agent.strategies.types import Ask, Strategy
from agent.types import FIRST_TURN, Attempt, Proposal, Proposer, Turn, Usage
from sandbox.errors import ConfigError
from sandbox.types import Candidate, EvalConfig, Language, Task

CUT_OFF = "cut_off"
"""Among a proposal's features where the token limit ended its reply."""
MISSED = "missed"
"""Among a proposal's features: how many equal questions before its own were not answered, so that a
replay hands its reply to the same one."""
TWIN = "twin"
"""Among a proposal's features where its reply was a known program in other clothes."""


class ModelProposer:
    """Proposes what a language model writes (agent.types.Proposer)."""

    wants_measured = True

    def __init__(
        self,
        model: Model,
        facts: Mapping[str, object],
        strategy: Strategy | None = None,
        language: Language | None = None,
        policy: EvalConfig | None = None,
        *,
        tuning: bool = False,
        skills: Skills | None = None,
    ) -> None:
        """`facts` describes the device in the prompt; `language` defaults to cpp on the CPU and
        cuda on the GPU; `policy` is what candidates are judged by; with `tuning` replies may
        declare constants to be searched; `skills` are what earlier campaigns noted.
        """
        if language is not None and language not in TITLES:
            names = ", ".join(known.value for known in TITLES)
            raise ConfigError(f"a model is not asked for {language.value!r}; expected {names}")
        self.name = model.name
        self.model = model
        self.facts = dict(facts)
        self.strategy = strategy or Fsr()
        self.language = language
        self.policy = policy
        self.tuning = tuning
        self.skills = skills

    def unsupported(self, task: Task) -> str | None:
        on_cpu = self._language(task) is Language.CPP
        if on_cpu == (task.device == "cpu"):
            return None
        return f"{task.id} runs on {task.device}, where {self._language(task).value} does not"

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        """The strategy's questions of this round, answered; fewer where requests failed. Raises
        ModelError where all did.
        """
        asks = self.asks(task, history, n, turn)
        replies = answers(self.model, asks, task, turn)
        made: list[Proposal] = []
        missed: Counter[tuple[str, str]] = Counter()
        for ask, reply in zip(asks, replies, strict=True):
            question = (ask.arm, json.dumps(ask.messages, ensure_ascii=False))
            if reply is None:
                missed[question] += 1
                continue
            proposal = self._proposal(task, ask, reply, missed[question])
            made.append(self._novel(ask, proposal, history, made))
        return made

    def asks(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Ask]:
        """What the model would be asked."""
        recalled = Recalled() if self.skills is None else self.skills.about(task, turn.measured)
        scene = Scene(
            task,
            self._language(task),
            self.facts,
            turn.measured,
            self.policy,
            turn.repeats,
            self.tuning,
            recalled.lines,
            recalled.source,
        )
        return self.strategy.asks(scene, history, n, turn.round)

    def _proposal(self, task: Task, ask: Ask, reply: Reply, missed: int) -> Proposal:
        said = transcript(reply)
        found = extract(said, reply.finish_reason)  # As a replay will read it.
        # A reply without code is an attempt too: the sandbox rejects it, and it gets its repair.
        source = found.source if found.source is not None else f"{NO_CODE}{found.reason}\n"
        return Proposal(
            candidate=Candidate(task.id, ask.language, source),
            proposer=reply.model or self.name,
            strategy=f"{self.strategy.kind} {ask.step}",
            parents=ask.parents,
            features={**ask.features, **_about(reply), **({MISSED: missed} if missed else {})},
            prompt=json.dumps(ask.messages, ensure_ascii=False),
            reply=said,
            usage=Usage(
                reply.prompt_tokens, reply.completion_tokens, reply.cost_usd, reply.seconds
            ),
        )

    def _novel(
        self, ask: Ask, proposal: Proposal, history: Sequence[Attempt], made: Sequence[Proposal]
    ) -> Proposal:
        """The proposal; where novelty is asked for, with the candidate it is a twin of, so that
        it is recorded as a duplicate and not measured again.
        """
        if not ask.novel or proposal.candidate.source.startswith(NO_CODE):
            return proposal
        form = normal_form(proposal.candidate)
        known = [*(attempt.proposal for attempt in history), *made]
        twin = next((p.candidate for p in known if normal_form(p.candidate) == form), None)
        if twin is None or twin == proposal.candidate:
            return proposal
        return replace(proposal, candidate=twin, features={**proposal.features, TWIN: 1})

    def _language(self, task: Task) -> Language:
        if self.language is not None:
            return self.language
        return Language.CPP if task.device == "cpu" else Language.CUDA


class SeededProposer:
    """Another proposer's first candidates as the population that a strategy goes on from."""

    def __init__(self, seeds: Proposer, inner: Proposer, count: int) -> None:
        """Up to `count` candidates of a task are the seeds'; none where it is not theirs."""
        self.name = inner.name
        self.wants_measured = inner.wants_measured
        self.seeds, self.inner, self.count = seeds, inner, count

    def unsupported(self, task: Task) -> str | None:
        return self.inner.unsupported(task)

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        left = self.count - sum(a.proposal.proposer == self.seeds.name for a in history)
        if left > 0 and self.seeds.unsupported(task) is None:
            proposals = self.seeds.propose(task, history, min(n, left), turn)
            if proposals:
                return proposals
        return self.inner.propose(task, history, n, turn)


def _about(reply: Reply) -> dict[str, int]:
    """What a proposal keeps of its reply's circumstances."""
    cut_off = {CUT_OFF: 1} if reply.finish_reason == "length" else {}
    if reply.policy_version is None:
        return cut_off
    return {**cut_off, POLICY_VERSION: reply.policy_version}


def transcript(reply: Reply) -> str:
    """The reply as the journal keeps it: reasoning the server set apart goes back in front."""
    if reply.reasoning is None:
        return reply.text
    return f"<think>\n{reply.reasoning}\n</think>\n{reply.text}"
