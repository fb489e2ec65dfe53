"""The minimal language-model proposer: one prompt, a repair turn with the error, optimise the best.

It knows prompts and history, not endpoints: any `Model` serves. It keeps no state of its own, so a
resumed campaign goes on from the journal alone. Exemplars and islands are other strategies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agent.model import Model, Reply
from agent.prompts.message import Message
from agent.prompts.render import NO_CODE, TITLES, render_improve, render_propose, render_repair
from agent.replies import extract
from agent.types import Attempt, Proposal, Usage
from sandbox.errors import ConfigError
from sandbox.types import Candidate, Language, Task

PROPOSE, REPAIR, IMPROVE = "propose", "repair", "improve"


class ModelProposer:
    """Proposes what a language model writes (agent.types.Proposer)."""

    def __init__(
        self,
        model: Model,
        facts: Mapping[str, object],
        language: Language | None = None,
        repair_depth: int = 2,
    ) -> None:
        """`facts` describes the device in the prompt; `language` defaults to cpp on the CPU and
        cuda on the GPU. A failure is repaired, a failed repair again, up to `repair_depth` turns.
        """
        if language is not None and language not in TITLES:
            names = ", ".join(known.value for known in TITLES)
            raise ConfigError(f"a model is not asked for {language.value!r}; expected {names}")
        self.name = model.name
        self.model = model
        self.facts = dict(facts)
        self.language = language
        self.repair_depth = repair_depth

    def unsupported(self, task: Task) -> str | None:
        on_cpu = self._language(task) is Language.CPP
        if on_cpu == (task.device == "cpu"):
            return None
        return f"{task.id} runs on {task.device}, where {self._language(task).value} does not"

    def propose(self, task: Task, history: Sequence[Attempt], n: int) -> Sequence[Proposal]:
        """Repairs first, newest failure first; what is left of `n` optimises the best so far, or
        starts anew where nothing has passed yet.
        """
        failed = open_failures(history, self.repair_depth)[:n]
        proposals = self._repairs(task, failed)
        if (remaining := n - len(failed)) > 0:
            proposals += self._fresh(task, history, remaining)
        return proposals

    def _repairs(self, task: Task, failed: Sequence[Attempt]) -> list[Proposal]:
        candidates = [attempt.proposal.candidate for attempt in failed]
        prompts = [
            render_repair(task, candidate.language, self.facts, candidate, attempt.evaluation)
            for candidate, attempt in zip(candidates, failed, strict=True)
        ]
        return [
            self._proposal(task, candidate.language, REPAIR, prompt, reply, (candidate.id,))
            for candidate, prompt, reply in zip(
                candidates, prompts, self.model.complete_each(prompts), strict=True
            )
            if reply is not None
        ]

    def _fresh(self, task: Task, history: Sequence[Attempt], n: int) -> list[Proposal]:
        best = best_so_far(history)
        if best is None:
            language = self._language(task)
            strategy, parents = PROPOSE, tuple[str, ...]()
            prompt = render_propose(task, language, self.facts)
        else:
            candidate = best.proposal.candidate
            language = candidate.language
            strategy, parents = IMPROVE, (candidate.id,)
            prompt = render_improve(task, language, self.facts, candidate, best.evaluation)
        return [
            self._proposal(task, language, strategy, prompt, reply, parents)
            for reply in self.model.complete(prompt, n)
        ]

    def _proposal(
        self,
        task: Task,
        language: Language,
        strategy: str,
        prompt: Sequence[Message],
        reply: Reply,
        parents: tuple[str, ...],
    ) -> Proposal:
        found = extract(reply.text, reply.finish_reason)
        # A reply without code is an attempt too: the sandbox rejects it, and it gets its repair.
        source = found.source if found.source is not None else f"{NO_CODE}{found.reason}\n"
        return Proposal(
            candidate=Candidate(task.id, language, source),
            proposer=self.name,
            strategy=strategy,
            parents=parents,
            prompt=json.dumps(prompt, ensure_ascii=False),
            reply=transcript(reply),
            usage=Usage(reply.prompt_tokens, reply.completion_tokens, seconds=reply.seconds),
        )

    def _language(self, task: Task) -> Language:
        if self.language is not None:
            return self.language
        return Language.CPP if task.device == "cpu" else Language.CUDA


def best_so_far(history: Sequence[Attempt]) -> Attempt | None:
    """The passed attempt with the highest lower bound of its speedup; the earliest of equals."""
    timed = [(a.evaluation.speedup, a) for a in history if a.proposal.candidate.language in TITLES]
    passed = [(speedup.low, attempt) for speedup, attempt in timed if speedup is not None]
    return max(passed, key=lambda pair: pair[0])[1] if passed else None


def open_failures(history: Sequence[Attempt], repair_depth: int) -> list[Attempt]:
    """Failures that are the candidate's fault and have had no repair turn yet, newest first.

    Equal code counts once, and so does a repair that came back unchanged.
    """
    repaired: set[str] = set()
    depth: dict[str, int] = {}
    failed: dict[str, Attempt] = {}
    for attempt in history:
        proposal, status = attempt.proposal, attempt.evaluation.status
        turns = 0
        if proposal.strategy == REPAIR:
            repaired.update(proposal.parents)
            turns = 1 + max((depth.get(parent, 0) for parent in proposal.parents), default=0)
        depth.setdefault(proposal.candidate.id, turns)
        writable = proposal.candidate.language in TITLES
        if writable and status.scored and not attempt.evaluation.passed:
            failed.setdefault(proposal.candidate.id, attempt)
    return [
        attempt
        for candidate_id, attempt in reversed(failed.items())
        if candidate_id not in repaired and depth[candidate_id] < repair_depth
    ]


def transcript(reply: Reply) -> str:
    """The reply as the journal keeps it: reasoning the server set apart goes back in front."""
    if reply.reasoning is None:
        return reply.text
    return f"<think>\n{reply.reasoning}\n</think>\n{reply.text}"
