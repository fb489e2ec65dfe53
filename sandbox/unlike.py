"""Input sets of timed batches that are unlike those as given, as verification's hidden inputs are.

Else whoever counts its calls knows from when on inputs as given are all that it is asked for: what
is right of U[0, 1) alone passed verification by being right for forty calls. They lie side by side
from a secret place on, in secret batches, and are called in the batch's secret order.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.observation import Errors

MOST = 4
"""Sets of a batch, and at most a quarter of it: its time is to stay that of the inputs as given."""


@dataclass(frozen=True)
class Kind:
    """What the inputs of one of a pool's cases are, and what is allowed of outputs on such."""

    name: str
    scale: float
    """Of the floating inputs, as get_inputs() makes them."""
    change: str | None
    """What of `hidden.CHANGES` is done to them."""
    bounds: tuple[Errors, ...]
    """Per output leaf, for timed rounds."""


@dataclass(frozen=True)
class Unlike:
    """Where in a batch there are inputs of other kinds, one set of each."""

    sets: int
    """Of the batch."""
    first: int
    kinds: tuple[Kind, ...]

    @property
    def places(self) -> list[tuple[int, Kind]]:
        return list(enumerate(self.kinds, self.first))

    @property
    def others(self) -> tuple[range, ...]:
        """The sets that are as given; no part of them is empty."""
        sides = range(self.first), range(self.first + len(self.kinds), self.sets)
        return tuple(side for side in sides if side)


class Kinds:
    """Of one evaluation: its batches meet all of them by turns, in a secret order."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds
        self._coming: list[Kind] = []
        self._secret = random.Random(secrets.randbits(64))

    def draw(self, sets: int) -> Unlike | None:
        """Some of a batch's sets, and what they are to hold; None where there is nothing to hold,
        or where a batch is too small to have others as well.
        """
        if not self._kinds or sets < 2:
            return None
        count = max(1, min(MOST, sets // 4))
        while len(self._coming) < count:
            self._coming += self._secret.sample(self._kinds, len(self._kinds))
        drawn, self._coming = self._coming[:count], self._coming[count:]
        return Unlike(sets, self._secret.randrange(sets - count + 1), tuple(drawn))
