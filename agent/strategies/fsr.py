"""Feature search and reinforcement (CUDA-LLM, arXiv 2506.09092): gates, repairs, best-so-far.

No weights change. Until a candidate has passed the compile and the function gate, failures are
repaired with their errors; from then on each question starts from the best so far and names one
feature to search. The paper asks every candidate of a round the same; here the features of a round
differ, untried ones first, then those that gained most. Its N is the campaign's
`proposals_per_round`; neither N nor D is in the paper, and 5 is what a re-implementation uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agent.prompts.hints import features_for
from agent.prompts.render import Scene, render_improve
from agent.strategies.lineage import (
    best_so_far,
    log_speedup,
    open_failures,
    repairs,
    start,
)
from agent.strategies.types import IMPROVE, Ask
from agent.types import Attempt, Proposal

FEATURE = "feature"
FAILED_GAIN = -0.3
"""In log-speedup: what a feature is held to have gained where its candidate failed."""


@dataclass(frozen=True)
class Fsr:
    kind: Literal["fsr"] = "fsr"
    depth: int = 5
    """Rounds (D)."""
    repair_turns: int = 2
    """A failure is repaired, a failed repair again, up to so many times."""
    repair_share: float = 0.5
    """Of a round, once something has passed."""

    def __post_init__(self) -> None:
        if self.depth < 1 or self.repair_turns < 0 or not 0 <= self.repair_share <= 1:
            raise ValueError("expected depth >= 1, repair_turns >= 0, repair_share in 0..1")

    def asks(self, scene: Scene, history: Sequence[Attempt], n: int, round: int) -> list[Ask]:
        if round >= self.depth:
            return []
        best = best_so_far(history)
        if best is None:
            return start(scene, history, n, self.repair_turns)
        failed = open_failures(history, self.repair_turns, scene.repeats)
        failed = failed[: int(n * self.repair_share)]
        features = features_for(best.proposal.candidate.language)
        chosen = search_order(history, features, scene.repeats)[: n - len(failed)]
        return repairs(scene, failed) + improvements(scene, history, best, chosen)


def improvements(
    scene: Scene, history: Sequence[Attempt], best: Attempt, features: Sequence[str]
) -> list[Ask]:
    """The best so far with each of the features in turn."""
    candidate = best.proposal.candidate
    its_scene = replace(scene, language=candidate.language)
    return [
        Ask(
            IMPROVE,
            candidate.language,
            render_improve(its_scene, candidate, best.evaluation, feature, history),
            (candidate.id,),
            {FEATURE: feature},
        )
        for feature in features
    ]


def search_order(
    history: Sequence[Attempt], features: Mapping[str, str], repeats: Sequence[Proposal] = ()
) -> list[str]:
    """Features to try next: untried in their order, then by their mean gain, best first."""
    gains = feature_gains(history, repeats)
    untried = [name for name in features if name not in gains]
    tried = [name for name in features if name in gains]
    return untried + sorted(tried, key=lambda name: -gains[name])


def feature_gains(history: Sequence[Attempt], repeats: Sequence[Proposal] = ()) -> dict[str, float]:
    """Mean log-speedup that each feature's candidates gained over their parents; what a repeat
    gained is the known program's.
    """
    by_id = {a.proposal.candidate.id: a for a in history}
    found: dict[str, list[float]] = {}
    for proposal in [*(a.proposal for a in history), *repeats]:
        feature, attempt = proposal.features.get(FEATURE), by_id.get(proposal.candidate.id)
        if feature is None or attempt is None or not attempt.evaluation.status.scored:
            continue
        after = log_speedup(attempt)
        before = [log_speedup(by_id[parent]) for parent in proposal.parents if parent in by_id]
        known = [value for value in before if value is not None]
        gain = FAILED_GAIN if after is None else after - max(known, default=0.0)
        found.setdefault(str(feature), []).append(gain)
    return {feature: sum(gains) / len(gains) for feature, gains in found.items()}
