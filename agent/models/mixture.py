"""Several models in one campaign, each with a share of the requests.

Which model gets a request follows from the prompt, its draw and its number alone, so that a resumed
or replayed campaign asks the same models the same questions.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from agent.model import AwaitingReplies, Model, ModelError, Reply, answered, combined
from agent.prompts.message import Message
from sandbox.types import digest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mixture:
    models: Sequence[Model]
    weights: Sequence[float]
    seed: int = 0

    @property
    def name(self) -> str:
        return "+".join(model.name for model in self.models)

    def complete(self, messages: Sequence[Message], n: int, draw: str = "") -> list[Reply]:
        return answered(self.complete_each([messages] * n, draw))

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        if not prompts:
            return []
        owners = self.owners(prompts, draw)
        shares = {i: [p for p, o in enumerate(owners) if o == i] for i in sorted(set(owners))}
        replies: list[Reply | None] = [None] * len(prompts)
        errors: list[ModelError] = []
        with ThreadPoolExecutor(len(shares)) as pool:
            asked = {
                i: pool.submit(
                    partial(self.models[i].complete_each, [prompts[p] for p in places], draw)
                )
                for i, places in shares.items()
            }
        for i, future in asked.items():
            try:
                for place, reply in zip(shares[i], future.result(), strict=True):
                    replies[place] = reply
            except ModelError as error:
                errors.append(error)
        awaiting = any(isinstance(error, AwaitingReplies) for error in errors)
        if awaiting or (errors and not any(replies)):
            raise combined(errors)
        for failed in errors:
            log.warning("one model's replies are missing: %s", failed)
        return replies

    def named(self, name: str) -> Model:
        """One of its models; raises ModelError where it has none of that name."""
        for model in self.models:
            if model.name == name:
                return model
        raise ModelError(f"{self.name}: no model {name!r} among them")

    def owners(self, prompts: Sequence[Sequence[Message]], draw: str) -> list[int]:
        """Index of the model that each prompt goes to."""
        seen: Counter[str] = Counter()
        owners = []
        for messages in prompts:
            text = json.dumps(list(messages))
            number = int(digest([self.seed, draw, seen[text], text]), 16) / 16**16
            seen[text] += 1
            owners.append(self._owner(number * sum(self.weights)))
        return owners

    def _owner(self, place: float) -> int:
        for i, weight in enumerate(self.weights):
            place -= weight
            if place < 0:
                return i
        return len(self.weights) - 1
