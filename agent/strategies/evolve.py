"""Evolution with a language model as mutation and crossover operator, on islands.

After FunSearch (Romera-Paredes et al., Nature 625, 2024, Methods): islands of correct programs, in
each of which parents are drawn by a softmax over clusters of equal score. Here the clusters are
buckets of log-speedup, drawn as the contrastive strategy draws them. A question mutates one parent
(by one named feature that this parent has not seen) or crosses two from distinct buckets. A reply
that is a known program in other clothes is rejected as a duplicate, as in ShinkaEvolve (arXiv
2509.19349), here by its normal form rather than an embedding. Failures are repaired on the island
they were born on. Everything is read from the attempts: a resumed campaign goes on alike.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agent.prompts.hints import features_for
from agent.prompts.render import Scene, render_crossover, render_improve
from agent.strategies.contrastive import buckets, draw
from agent.strategies.fsr import FEATURE
from agent.strategies.islands import GENERATION, ISLAND, Member, members, populations
from agent.strategies.lineage import fresh, open_failures, repairs
from agent.strategies.types import CROSSOVER, IMPROVE, Ask
from agent.types import Attempt
from sandbox.types import digest


@dataclass(frozen=True)
class Evolve:
    kind: Literal["evolve"] = "evolve"
    islands: int = 2
    migrate_every: int = 2
    """Rounds."""
    migrants: int = 1
    """Of each island, to the next one in the ring; 0 leaves the islands apart."""
    crossover_share: float = 0.5
    """Of the questions to an island with two parents to cross."""
    novelty: bool = True
    """A reply that normalises to a known program is a duplicate and is not measured."""
    bucket_width: float = 0.15
    """In log-speedup."""
    temperature: float | None = None
    """Of the softmax over buckets; by default the standard deviation of their means."""
    repair_turns: int = 2
    repair_share: float = 0.34
    """Of a round, once something has passed."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.islands < 1 or self.migrate_every < 1 or self.migrants < 0:
            raise ValueError("expected islands >= 1, migrate_every >= 1, migrants >= 0")
        if not 0 <= self.crossover_share <= 1 or not 0 <= self.repair_share <= 1:
            raise ValueError("expected crossover_share and repair_share in 0..1")
        if not self.bucket_width > 0 or not (self.temperature is None or self.temperature > 0):
            raise ValueError("expected bucket_width and temperature above 0")

    def asks(self, scene: Scene, history: Sequence[Attempt], n: int, round: int) -> list[Ask]:
        known = members(history, self.islands)
        living = populations(known, self.islands, self.migrate_every, self.migrants, round)
        failed = open_failures(history, self.repair_turns, scene.repeats)
        failed = failed[: int(n * self.repair_share) if any(living) else n]
        home = {member.attempt.proposal.candidate.id: member.island for member in known}
        asked = [self._born(ask, home[ask.parents[0]], round) for ask in repairs(scene, failed)]
        for place, island in enumerate(self._turns(known, n - len(asked))):
            dice = random.Random(digest([self.seed, scene.task.hash, round, place]))
            ask = self._child(scene, living[island], history, dice)
            asked.append(self._born(ask, island, round))
        return asked

    def _turns(self, known: Sequence[Member], n: int) -> list[int]:
        """Islands that are asked next: those with the fewest children so far."""
        children = Counter(member.island for member in known)
        turns: list[int] = []
        for _ in range(n):
            island = min(range(self.islands), key=lambda i: (children[i], i))
            children[island] += 1
            turns.append(island)
        return turns

    def _born(self, ask: Ask, island: int, round: int) -> Ask:
        features = {**ask.features, ISLAND: island, GENERATION: round}
        return replace(ask, features=features, novel=self.novelty)

    def _child(
        self,
        scene: Scene,
        population: Sequence[Attempt],
        history: Sequence[Attempt],
        dice: random.Random,
    ) -> Ask:
        found = buckets(population, self.bucket_width)
        if not found:
            return fresh(scene, 1)[0]
        cross = dice.random() < self.crossover_share
        parents = draw(found, 1 + cross, self.temperature, dice)
        language = parents[-1].proposal.candidate.language
        its_scene = replace(scene, language=language)
        if len(parents) == 1:
            return mutation(its_scene, parents[0], history, dice)
        ids = tuple(parent.proposal.candidate.id for parent in parents)
        return Ask(CROSSOVER, language, render_crossover(its_scene, parents), ids)


def mutation(scene: Scene, parent: Attempt, history: Sequence[Attempt], dice: random.Random) -> Ask:
    """The parent with a feature that it was not asked for yet, any of them once all were."""
    candidate = parent.proposal.candidate
    children = [a for a in history if candidate.id in a.proposal.parents]
    answers = [*(a.proposal for a in history), *scene.repeats]
    tried = {answer.features.get(FEATURE) for answer in answers if candidate.id in answer.parents}
    features = list(features_for(candidate.language))
    feature = dice.choice([f for f in features if f not in tried] or features)
    messages = render_improve(scene, candidate, parent.evaluation, feature, children)
    return Ask(IMPROVE, candidate.language, messages, (candidate.id,), {FEATURE: feature})
