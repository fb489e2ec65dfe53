"""Input sets of timed batches that are unlike those as given, as verification's hidden inputs are.

Else whoever counts its calls knows from when on inputs as given are all that it is asked for: what
is right of U[0, 1) alone passed verification by being right for forty calls. They lie side by side
from a secret place on, in secret batches, and are called in the batch's secret order. Where calls
move buffers, through which outputs of one kind could depend on inputs of another, and where a batch
is a single set, a whole batch is of one kind.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.observation import Errors

MOST = 4
"""Sets of a batch, and at most a quarter of it (of two or three sets one): its time is to stay that
of the inputs as given."""


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
    """Where in a batch there are inputs of other kinds."""

    sets: int
    """Of the batch."""
    places: tuple[tuple[range, Kind], ...]
    """Side by side."""

    @property
    def others(self) -> tuple[range, ...]:
        """The sets that are as given; no part of them is empty."""
        first, last = self.places[0][0].start, self.places[-1][0].stop
        return tuple(side for side in (range(first), range(last, self.sets)) if side)


class Kinds:
    """Of one evaluation: its batches meet all of them by turns, in a secret order."""

    def __init__(self, kinds: Sequence[Kind], *, whole: bool = False) -> None:
        """`whole`: a batch that has any has one kind alone."""
        self.kinds, self.whole = tuple(kinds), whole
        self._coming: list[Kind] = []
        self._secret = random.Random(secrets.randbits(64))

    def draw(self, sets: int) -> Unlike | None:
        """Some of a batch's sets, and what they hold; None where there is nothing to hold."""
        if not self.kinds:
            return None
        if self.whole or sets < 2:
            return Unlike(sets, ((range(sets), self._next()),))
        count = max(1, min(MOST, sets // 4))
        first = self._secret.randrange(sets - count + 1)
        places = (range(index, index + 1) for index in range(first, first + count))
        return Unlike(sets, tuple((place, self._next()) for place in places))

    def _next(self) -> Kind:
        if not self._coming:
            self._coming = self._secret.sample(self.kinds, len(self.kinds))
        return self._coming.pop()
