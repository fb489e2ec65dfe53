"""The seam to training: a learner's policy proposes, and learns from what its rollouts were worth.

The loop knows this protocol and no trainer; `rl` implements it and warpsmith.py wires it in. The
journal is the only memory: what is to be learned from is read from it, so that a killed campaign
goes on with the same rollouts, exemplars and weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agent.confirm import abnormal, checked
from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from agent.model import Model
from agent.strategies.types import REPAIR
from rewards import speedup
from rewards.types import Reward
from sandbox.records import to_record
from sandbox.types import Evaluation, Status
from sandbox.words import number_of

LEARN = "learn"
"""Kind of the journal's event for an update; its detail is a Lesson."""
POLICY_VERSION = "policy_version"
"""Among a proposal's features: how many updates the weights had had that wrote it."""


UNCONFIRMED = "abnormally fast, and not confirmed"


@dataclass(frozen=True)
class Rollout:
    """One reply of a policy and what became of it."""

    task_id: str
    prompt: str
    """The messages as JSON (agent.types.Proposal.prompt); equal prompts make a group."""
    reply: str
    version: int
    evaluation: Evaluation
    """The confirmation where one was measured; of equal code, the first one's."""
    candidate_id: str = ""
    parents: tuple[str, ...] = ()
    """Candidates it was made from: of a repair, the one that failed."""
    repair: bool = False
    """A later turn of an episode."""
    round: int = 0
    """Of its task."""
    lag_s: float | None = None
    """From its proposal to its verdict; None of code that was judged before."""


@dataclass(frozen=True)
class Lesson:
    """What one update did."""

    version: int
    """Of the weights after it; as before where there was nothing to tell the rollouts apart."""
    rollouts: int
    groups: int
    """That differed in reward, of `seen` groups: only those have a gradient."""
    seen: int
    figures: Mapping[str, float]
    """Mean reward, correct share, hack share, loss, gradient norm, seconds."""
    cohort: int = 0
    """Whose rollouts they were."""

    def __str__(self) -> str:
        """In a line, as far as its learner told figures."""
        told = self.figures
        number = f"version {self.version}" if self.groups else f"still version {self.version}"
        parts = [f"{number}: {number_of(self.rollouts, 'reply')}"]
        if "correct" in told:
            speed = f" at {told.get('speedup_correct', 1):.2f}x" if told["correct"] else ""
            parts.append(f"{told['correct']:.0%} right{speed}")
        if told.get("hacks"):
            parts.append(f"{told['hacks']:.0%} hacks")
        if "reward" in told:
            parts.append(f"reward {told['reward']:.2f}")
        parts.append(f"{self.groups} of {number_of(self.seen, 'group')} teach")
        if self.groups and "seconds" in told:
            parts.append(f"update {told['seconds']:.1f} s")
        if "idle" in told:
            parts.append(f"waited {told['idle']:.0%}")
        return ", ".join(parts)


class Learner(Protocol):
    name: str

    @property
    def version(self) -> int:
        """Updates the weights have had in this run."""
        ...

    @property
    def last(self) -> Lesson | None:
        """What made the weights that it was opened with, where that was an update of this run."""
        ...

    @property
    def turns(self) -> int:
        """Rounds between two updates: of an episode, in which failures are repaired."""
        ...

    @property
    def ahead(self) -> int:
        """Updates that weights may have had since they wrote what they learn from: as many further
        cohorts of tasks are sampled and judged meanwhile.
        """
        ...

    @property
    def reward_name(self) -> str:
        """Of the reward function, as the journal stores it."""
        ...

    def reward(self, evaluation: Evaluation, reply: str | None) -> Reward:
        """What a rollout is worth; pure."""
        ...

    def again(
        self, known: Sequence[Rollout], fresh: Sequence[Rollout] | None = None
    ) -> frozenset[str]:
        """Tasks that should have another round by the present weights before these change: from
        what they have there is nothing to learn. Arguments as those of `learn`.
        """
        ...

    def learn(
        self, known: Sequence[Rollout], fresh: Sequence[Rollout] | None = None, cohort: int = 0
    ) -> Lesson | None:
        """One update on `fresh` of the known rollouts, by default those that the present weights
        wrote; None where there are none. `cohort`: as the lesson tells it.

        The new weights are on disk when it returns, and from then on proposals are theirs.
        """
        ...


@dataclass(frozen=True)
class LocalPolicy:
    """Weights of our own that propose in a run."""

    model: Model
    learner: Learner | None = None
    """Who changes them; None where they stay as they are."""
    gpus: int = 1
    """That they are on, of this machine's, from the first."""
    apart: bool = True
    """They are sampled on what lanes measure on."""


OpenPolicy = Callable[[Path], LocalPolicy]
"""From a run's folder, in which a learner's checkpoints lie."""


def rollouts(journal: Journal) -> list[Rollout]:
    """Every judged rollout of a run. Repeated code is a rollout too: a policy that repeats itself
    is paid for it again. An abnormal figure that was not measured again says nothing, as a fault of
    ours.
    """
    found = []
    for task in journal.tasks():
        records = journal.proposals(task.id)
        judged = {r.proposal.candidate.id: r for r in records if not r.duplicate}
        lags = journal.lags(task.id)
        doubted = {r.id for r in abnormal(records)}
        for record in records:
            candidate_id = record.proposal.candidate.id
            lag_s = None if record.duplicate else lags.get(candidate_id)
            first = judged[candidate_id]
            rollout = _rollout(record, _believed(first, first.id in doubted), lag_s)
            if rollout is not None:
                found.append(rollout)
    return found


def catch_up(journal: Journal, learner: Learner | None) -> None:
    """Keep an update whose process was killed once the weights were on disk and before that."""
    last = None if learner is None else learner.last
    told = [json.loads(detail)["version"] for detail in journal.events(LEARN)]
    if last is not None and last.version > max(told, default=0):
        record_lesson(journal, last)


def record_lesson(journal: Journal, lesson: Lesson, seconds: float | None = None) -> None:
    """The journal keeps what an update did, and how long it took."""
    detail = json.dumps(to_record(lesson), sort_keys=True)
    journal.record_event(LEARN, seconds=seconds, detail=detail)


def taught(learner: Learner | None, most: int | None) -> bool:
    """Whether its weights have had as many updates as a run may give them."""
    return learner is not None and most is not None and learner.version >= most


def reward_of(
    learner: Learner | None, record: Recorded, evaluation: Evaluation
) -> tuple[Reward, str]:
    """With the name of the function it comes from."""
    if learner is None:
        return speedup.reward(evaluation), speedup.NAME
    return learner.reward(evaluation, record.proposal.reply), learner.reward_name


def _believed(record: Recorded, doubted: bool) -> Evaluation | None:
    """What may enter a gradient: of a figure too good to be true what it was confirmed to be, or
    nothing at all.
    """
    confirmation, found = checked(record), record.evaluation
    if confirmation is not None:
        return confirmation
    if doubted and found is not None:
        return replace(found, status=Status.SANDBOX_ERROR, timing=None, detail=UNCONFIRMED)
    return found


def _rollout(
    record: Recorded, evaluation: Evaluation | None, lag_s: float | None
) -> Rollout | None:
    proposal = record.proposal
    version = proposal.features.get(POLICY_VERSION)
    if evaluation is None or proposal.prompt is None or proposal.reply is None:
        return None
    if not isinstance(version, int):
        return None
    return Rollout(
        proposal.candidate.task_id,
        proposal.prompt,
        proposal.reply,
        version,
        evaluation,
        proposal.candidate.id,
        proposal.parents,
        proposal.strategy.endswith(REPAIR),
        record.round,
        lag_s,
    )
