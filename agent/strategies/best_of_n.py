"""Best of N: independent samples of one prompt, the baseline that other strategies must beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agent.prompts.render import Scene
from agent.strategies.lineage import fresh
from agent.strategies.types import Ask
from agent.types import Attempt


@dataclass(frozen=True)
class BestOfN:
    kind: Literal["best-of-n"] = "best-of-n"

    def asks(self, scene: Scene, history: Sequence[Attempt], n: int, round: int) -> list[Ask]:
        return fresh(scene, n)
