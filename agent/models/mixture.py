"""Several models in one campaign, each with a share of the requests.

Which model gets a request follows from the prompt, its draw and its number alone, so that a resumed
or replayed campaign asks the same models the same questions. One that cannot be asked at all is
left out from then on, and the others answer in its place, chosen likewise.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from agent.model import Model, ModelError, Reply, Unavailable, settle
from agent.prompts.message import Message
from sandbox.types import digest


@dataclass(frozen=True)
class _Share:
    owner: int
    asked: int
    """Who answers: another where the owner is left out."""


@dataclass(frozen=True)
class Mixture:
    models: Sequence[Model]
    weights: Sequence[float]
    seed: int = 0
    tell: Callable[[str], None] = lambda _: None
    """Hears a line of every model that is left out."""
    _left_out: set[int] = field(init=False, repr=False, compare=False, default_factory=set)
    _lock: threading.Lock = field(
        init=False, repr=False, compare=False, default_factory=threading.Lock
    )

    @property
    def name(self) -> str:
        return "+".join(model.name for model in self.models)

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        return self.ask(prompts, draw, self.owners(prompts, draw))

    def named(self, name: str) -> Model:
        """One of its models, for which others answer once it is left out; raises ModelError where
        it has none of that name.
        """
        for index, model in enumerate(self.models):
            if model.name == name:
                return _Member(self, index)
        raise ModelError(f"{self.name}: no model {name!r} among them")

    def owners(self, prompts: Sequence[Sequence[Message]], draw: str) -> list[int]:
        """Index of the model that each prompt goes to."""
        seen: Counter[str] = Counter()
        owners = []
        for messages in prompts:
            text = json.dumps(list(messages))
            owners.append(self._drawn(range(len(self.models)), draw, seen[text], text))
            seen[text] += 1
        return owners

    def ask(
        self, prompts: Sequence[Sequence[Message]], draw: str, owners: Sequence[int]
    ) -> list[Reply | None]:
        """Each prompt's reply by its owner, or by another in its place; raises as a Model does."""
        replies: list[Reply | None] = [None] * len(prompts)
        errors: list[ModelError] = []
        places = list(range(len(prompts)))
        while places:
            shares = self._shares(owners, draw, places)
            places = []
            for share, found in self._asked(shares, prompts, draw).items():
                if isinstance(found, Unavailable) and self._leave_out(share.asked, found):
                    places += shares[share]
                elif isinstance(found, ModelError):
                    errors.append(found)
                else:
                    for place, reply in zip(shares[share], found, strict=True):
                        replies[place] = reply
        settle("model", replies, errors)
        return replies

    def _shares(
        self, owners: Sequence[int], draw: str, places: Sequence[int]
    ) -> dict[_Share, list[int]]:
        """These places of the prompts, by who is asked in place of whom."""
        others = [i for i in range(len(self.models)) if i not in self._left_out]
        shares: dict[_Share, list[int]] = {}
        for place in places:
            asked = owner = owners[place]
            if owner not in others and others:
                asked = self._drawn(others, draw, place, owner)
            shares.setdefault(_Share(owner, asked), []).append(place)
        return shares

    def _asked(
        self,
        shares: Mapping[_Share, Sequence[int]],
        prompts: Sequence[Sequence[Message]],
        draw: str,
    ) -> dict[_Share, list[Reply | None] | ModelError]:
        """Each share's replies, or why it has none."""

        def ask(share: _Share) -> list[Reply | None] | ModelError:
            mine = [prompts[place] for place in shares[share]]
            # Apart from equal prompts of its own: those are other requests.
            others = f"for {self.models[share.owner].name} {draw}"
            own = share.owner == share.asked
            try:
                return self.models[share.asked].complete_each(mine, draw if own else others)
            except ModelError as error:
                return error

        with ThreadPoolExecutor(len(shares)) as pool:
            return dict(zip(shares, pool.map(ask, shares), strict=True))

    def _leave_out(self, index: int, error: Unavailable) -> bool:
        """Whether somebody else is left to ask."""
        with self._lock:
            new = index not in self._left_out
            self._left_out.add(index)
            left = len(self._left_out) < len(self.models)
        if new and left:
            self.tell(f"left out, the others go on: {error}")
        return left

    def _drawn(self, among: Sequence[int], *about: object) -> int:
        """One of them by weight, and by what it is about."""
        number = int(digest([self.seed, *about]), 16) / 16**16
        place = number * sum(self.weights[i] for i in among)
        for i in among:
            place -= self.weights[i]
            if place < 0:
                return i
        return among[-1]


@dataclass(frozen=True)
class _Member:
    """One model of a mixture (agent.model.Model)."""

    mixture: Mixture
    index: int

    @property
    def name(self) -> str:
        return self.mixture.models[self.index].name

    def complete_each(
        self, prompts: Sequence[Sequence[Message]], draw: str = ""
    ) -> list[Reply | None]:
        return self.mixture.ask(prompts, draw, [self.index] * len(prompts))
