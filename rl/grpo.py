"""Contrastive RL inside a campaign: implements agent.learner.Learner.

Prompts are the campaign's own (its contrastive strategy, exemplars from the live journal; CUDA-L1,
arXiv 2507.14111, stage 3). An update groups rollouts by prompt, normalises rewards in each group,
and takes GRPO steps with DAPO's clipping; groups whose rewards are all equal have no gradient
and are left out, after their tasks were sampled again. Checkpoints: `learner/VERSION`, each
complete or absent, so that kill -9 costs at most the update under way.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agent.learner import Lesson, Rollout
from rewards.robust import smooth
from rewards.terms import score
from rewards.types import Reward
from rl.config import TrainConfig
from rl.curves import write_curves
from rl.episodes import hacks_last, returns
from rl.figures import spread, summary
from rl.kept import LEARNING, keep_config, refuse_other
from rl.local import LocalModel
from rl.policy import FILE
from rl.ranks import Ranks
from rl.replica import Replica
from rl.served import ServedPolicy
from rl.trainers import Group
from rl.written import TokenStore, Written
from sandbox.records import from_record, to_record
from sandbox.types import Evaluation, digest
from sandbox.words import number_of

T = TypeVar("T")
FOLDER = "learner"
TOKENS = "tokens.jsonl"
LESSON = "lesson.json"
"""In a checkpoint: the update that made it, for a journal that a kill kept from telling it."""
KEPT = 2
"""Newest versions kept on disk."""


class GrpoLearner:
    """The policy of one run: `model` proposes with the weights that `learn` changes."""

    def __init__(
        self,
        run: Path,
        start: Path | str,
        config: TrainConfig,
        device: str,
        ranks: Ranks | None = None,
    ) -> None:
        """Goes on from the run's newest checkpoint, or from the weights in `start`. `ranks`: who
        samples and learns, by default this process alone.
        """
        self.config, self.folder = config, run / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        refuse_other(LEARNING, to_record(config), self.folder)
        newest = max(versions(self.folder), default=None)
        self.ranks = ranks or Ranks(Replica(config, device))
        self.scratch = self.folder / "trainer"
        checkpoint = None if newest is None else self.folder / str(newest)
        self.ranks.open(start, checkpoint, self.scratch)
        keep_config(to_record(config), self.folder)
        self.policy = self.ranks.replica.policy
        self.name = self.policy.name
        tokens = TokenStore(self.folder / TOKENS, versions=1 + config.rl.ahead)
        here = config.sampling.engine == "hf"
        sampler, replicas = (self.ranks, self.ranks.size) if here else (self._served(), 1)
        self.model = LocalModel(
            self.policy, config.sampling, config.seed, tokens, sampler, replicas
        )
        known = None if checkpoint is None else checkpoint / LESSON
        self.last: Lesson | None = None
        if known is not None and known.is_file():
            self.last = from_record(Lesson, json.loads(known.read_text()))
        self._since: tuple[float, float] | None = None
        """When the last update ended (time.monotonic), and for how long it had sampled by then."""

    @property
    def version(self) -> int:
        return self.policy.version

    @property
    def turns(self) -> int:
        return self.config.rl.turns

    @property
    def ahead(self) -> int:
        return self.config.rl.ahead

    @property
    def reward_name(self) -> str:
        return self.config.reward.name

    def reward(self, evaluation: Evaluation, reply: str | None) -> Reward:
        return score(evaluation, self.config.reward, reply)

    def again(
        self, known: Sequence[Rollout], fresh: Sequence[Rollout] | None = None
    ) -> frozenset[str]:
        return self._alone(lambda: self._again(known, self._fresh(known, fresh)))

    def learn(
        self, known: Sequence[Rollout], fresh: Sequence[Rollout] | None = None, cohort: int = 0
    ) -> Lesson | None:
        return self._alone(lambda: self._learn(known, self._fresh(known, fresh), cohort))

    def _fresh(
        self, known: Sequence[Rollout], fresh: Sequence[Rollout] | None
    ) -> Sequence[Rollout]:
        return [r for r in known if r.version == self.version] if fresh is None else fresh

    def _alone(self, part: Callable[[], T]) -> T:
        """While nothing is sampled, which only cohorts that are ahead would be."""
        return self.model.between(part) if self.ahead else part()

    def _again(self, known: Sequence[Rollout], fresh: Sequence[Rollout]) -> frozenset[str]:
        tasks: dict[str, list[Rollout]] = defaultdict(list)
        for rollout in fresh:
            tasks[rollout.task_id].append(rollout)
        return frozenset(
            task
            for task, mine in tasks.items()
            if self._generations(mine) <= self.config.rl.resample
            and not any(self._teaches(group) for group in self._groups(mine, known))
        )

    def _generations(self, rollouts: Sequence[Rollout]) -> int:
        """Of one task by the present weights, whose rollouts these are."""
        return math.ceil(len({r.round for r in rollouts}) / self.turns)

    def _learn(
        self, known: Sequence[Rollout], fresh: Sequence[Rollout], cohort: int
    ) -> Lesson | None:
        if not fresh:
            return None
        began_s = time.monotonic()
        seen = self._groups(fresh, known)
        groups = [group for group in seen if self._teaches(group)]
        figures = summary(fresh, self.config.reward) | spread(seen)
        if self.ahead:
            figures["age"] = sum(self.version - r.version for r in fresh) / len(fresh)

        def lesson() -> Lesson:
            return Lesson(self.version, len(fresh), len(groups), len(seen), figures, cohort)

        if groups:
            told = self.ranks.update([self._compared(group) for group in groups])
            figures |= {f"trl/{key}": value for key, value in told.items()}
            shutil.rmtree(self.scratch, ignore_errors=True)
            self._save(lesson())
        figures["seconds"] = time.monotonic() - began_s
        figures |= self._idle(figures["seconds"])
        write_curves(self.folder, self.version, figures, fresh)
        return lesson()

    def _idle(self, update_s: float) -> dict[str, float]:
        """The share of the time since the last update, or since the run's first sampling, in which
        nothing was sampled or updated: it was waited for evaluations.
        """
        now_s, busy_s = time.monotonic(), self.model.busy_s
        since_s, had_s = self._since or (self.model.began_s, 0.0)
        self._since = now_s, busy_s
        if since_s is None:  # of an earlier call's rollouts alone
            return {}
        return {"idle": max(0.0, 1 - (busy_s - had_s + update_s) / (now_s - since_s))}

    def _groups(self, fresh: Sequence[Rollout], known: Sequence[Rollout]) -> list[Group]:
        settings = self.config.rl
        values = [self.reward(r.evaluation, r.reply).value for r in fresh]
        if settings.smooth_clip is not None:
            recent = [r for r in known if r.version > self.version - settings.smooth_window]
            found = [self.reward(r.evaluation, r.reply).value for r in recent]
            values = smooth(values, [v for v in found if v is not None], settings.smooth_clip)
        values = hacks_last(fresh, returns(fresh, values, settings.discount))
        compared: dict[str, list[tuple[Rollout, float | None]]] = defaultdict(list)
        for rollout, value in zip(fresh, values, strict=True):
            compared[_compared_with(rollout)].append((rollout, value))
        groups, aged = [], any(rollout.version != self.version for rollout in fresh)
        for key, members in compared.items():
            for first in range(0, len(members), settings.group):
                part = members[first : first + settings.group]
                groups.append(self._group(digest([key, first]), part, aged))
        return groups

    def _teaches(self, group: Group) -> bool:
        """Whether its rewards differ, and are enough."""
        known = [value for value in group.rewards if value is not None]
        return len(set(known)) > 1 and len(known) >= self.config.rl.least

    def _group(
        self, key: str, members: Sequence[tuple[Rollout, float | None]], aged: bool
    ) -> Group:
        """`aged`: other weights than the present ones wrote some. How likely a reply was by them is
        then needed, and one of which that was lost is left out.
        """
        written = [self._written(rollout) for rollout, _ in members]
        values = [
            None if aged and not one.log_probabilities else value
            for one, (_, value) in zip(written, members, strict=True)
        ]
        likely = [one.log_probabilities or [0.0] * len(one.ids) for one in written]
        return Group(
            key,
            [self.policy.prompt_ids(json.loads(rollout.prompt)) for rollout, _ in members],
            [one.ids for one in written],
            values,
            likely if aged else None,
        )

    def _compared(self, group: Group) -> Group:
        """With rewards such that, less their mean, they are what the config calls advantage."""
        count = sum(value is not None for value in group.rewards)
        if self.config.rl.advantage == "group" or count < 2:
            return group
        # r - mean(others) = n / (n - 1) (r - mean(all))
        scaled = [None if r is None else r * count / (count - 1) for r in group.rewards]
        return replace(group, rewards=scaled)

    def _written(self, rollout: Rollout) -> Written:
        kept = self.model.tokens.get(rollout.version, rollout.prompt, rollout.reply)
        return Written(self.policy.reply_ids(rollout.reply)) if kept is None else kept

    def _served(self) -> ServedPolicy:
        """Who samples in the ranks' place, from what is saved."""
        if self.version not in versions(self.folder):
            self._save()  # The first adapters are drawn by chance: no server could make them.
        return ServedPolicy(
            self.policy, self.config.sampling, self.folder, lambda: self.folder / str(self.version)
        )

    def _save(self, lesson: Lesson | None = None) -> None:
        """Under another name first: a folder named after a version is complete."""
        partial = self.folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        self.ranks.save(partial)
        if lesson is not None:
            (partial / LESSON).write_text(json.dumps(to_record(lesson)))
        os.replace(partial, self.folder / str(self.version))
        for old in sorted(versions(self.folder))[:-KEPT]:
            shutil.rmtree(self.folder / str(old))


def versions(folder: Path) -> list[int]:
    """Of the complete checkpoints in a learner's folder."""
    return [int(f.parent.name) for f in folder.glob(f"*/{FILE}") if f.parent.name.isdigit()]


def led_to(run: Path, start: Path, asked: int | None = None) -> str:
    """Which weights a run has led to, in a line; `asked`: updates that it was to take."""
    version = max(versions(run / FOLDER), default=0)
    if not version:
        return f"no update was taken: the weights are those of {start}"
    taken = number_of(version, "update")
    if asked is not None and version < asked:
        taken = f"{version} of {number_of(asked, 'update')}"
    return f"{run / FOLDER / str(version)}: weights of {taken}"


def _compared_with(rollout: Rollout) -> str:
    """Rollouts of equal text here make a group: of one prompt in one round, or one task's repairs,
    each of which has a prompt of its own. A prompt that is asked in two rounds of the same weights
    is two groups: in an episode's later turns a failure has fewer repairs to be worth.
    """
    if rollout.repair:
        return f"repairs of {rollout.task_id}"
    return digest([rollout.round, rollout.prompt])
