"""Input sets of timed batches that are unlike those as given, as verification's hidden inputs are.

Else whoever counts its calls knows from when on inputs as given are all that it is asked for: what
is right of U[0, 1) alone passed verification by being right for forty calls. They lie side by side
from a secret place on, in secret batches, and are called in the batch's secret order. Where calls
move buffers, through which outputs of one kind could depend on inputs of another, and where a batch
is a single set, a whole batch is of one kind.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.checking.bounds import timed_bounds
from sandbox.checking.compare import SHORT_ROW
from sandbox.checking.pool import Pool
from sandbox.judging.statistics import full_rounds
from sandbox.machine.trees import Leaf
from sandbox.observation import Errors
from sandbox.pairs.rounds import HIDING_ROUNDS
from sandbox.subjects.signature import Signature
from sandbox.types import EvalConfig

MOST = 4
"""Sets of a batch, and at most a quarter of it (of two or three sets one), unless the batches that
hold any would not meet all kinds so: its time is to stay that of the inputs as given."""
PART_NEGATED, SLOW_CHANGE = "part negated", "flattened"
FLATTENED_BYTES = 4 << 20
"""Of inputs, up to which another distribution is made of them beside what is timed (CPU: 0.1 s for
four sets)."""
LEAST_SCALE, MOST_SCALE, UNLIKE_TIMES = 0.01, 3.0, 16.0
"""Of hidden inputs in timed batches, and of what is allowed of outputs on them."""


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
    finite: bool = True
    """Outputs on such inputs are."""

    @property
    def signs(self) -> bool:
        """Whether signs are others than of inputs as given."""
        return self.scale < 0 or self.change == PART_NEGATED


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
    """Of one evaluation: its batches meet all of them by turns, in a secret order that begins with
    one of other signs.
    """

    def __init__(self, kinds: Sequence[Kind], batches: int, *, whole: bool = False) -> None:
        """`batches`: so many hold any at least. `whole`: such a batch has one kind alone."""
        self.kinds, self.whole = tuple(kinds), whole
        self._least = math.ceil(len(self.kinds) / batches)
        self._coming: list[Kind] = []
        self._first = True
        self._secret = random.Random(secrets.randbits(64))

    def draw(self, sets: int) -> Unlike | None:
        """Some of a batch's sets, and what they hold; None where there is nothing to hold."""
        if not self.kinds:
            return None
        if self.whole or sets < 2:
            return Unlike(sets, ((range(sets), self._next()),))
        count = min(sets - 1, max(1, self._least, min(MOST, sets // 4)))
        first = self._secret.randrange(sets - count + 1)
        places = (range(index, index + 1) for index in range(first, first + count))
        return Unlike(sets, tuple((place, self._next()) for place in places))

    def _next(self) -> Kind:
        if not self._coming:
            self._coming = self._secret.sample(self.kinds, len(self.kinds))
            signs = [kind for kind in self._coming if kind.signs]
            if self._first and signs:
                # A search may end after one batch that holds any, of few sets one or two: chance
                # would else decide whether it met more than positive inputs.
                self._coming.remove(signs[0])
                self._coming.append(signs[0])
            self._first = False
        return self._coming.pop()


def timed_kinds(pool: Pool, config: EvalConfig) -> Kinds:
    """The hidden inputs that timed batches may hold beside those as given: negated in whole and in
    part, smaller and larger ones, and, where that takes no time to speak of, those of another
    distribution. The pairs behind a figure meet all, where a batch has room for that. Fresh values
    are like none that was seen: one element changed in them would say nothing.

    Who is wrong on them is so by far, and an honest kernel is to pass whatever is drawn: bounds are
    wide, outputs of a few elements, which have no scale of their own, are left out, and so are
    scales at which many functions saturate. There one operand near zero is worth an error that the
    draw of the case did not have: of honest tanh layers nine in ten were refused at 2^20.
    """
    given, *others = pool.cases
    batches = max(1, config.min_pairs * min(HIDING_ROUNDS, full_rounds(config)))
    if not pool.signature.inputs or not any(_has_scale(leaf) for leaf in pool.signature.outputs):
        return Kinds((), batches)
    small = pool.signature.input_bytes <= FLATTENED_BYTES
    scaled = sorted(
        (case for case in others if case.change is None and _moderate(case.scale, given.scale)),
        key=lambda case: case.scale,
    )
    above = [case for case in scaled if case.scale > 0]
    chosen = [case for case in scaled if case.scale < 0] + above[:1] + above[1:][-1:]
    chosen += [
        case
        for case in others
        if case.change is not None and not case.alike and (small or case.change != SLOW_CHANGE)
    ]
    kinds = [
        Kind(
            case.name,
            case.scale,
            case.change,
            _wide(timed_bounds(case), pool.signature),
            case.finite,
        )
        for case in chosen
    ]
    return Kinds(kinds, batches, whole=pool.signature.moves_state)


def _moderate(scale: float, given: float) -> bool:
    return scale != given and LEAST_SCALE <= abs(scale) <= MOST_SCALE


def _has_scale(leaf: Leaf) -> bool:
    return not leaf.floating or leaf.elements >= SHORT_ROW


def _wide(bounds: Sequence[Errors], signature: Signature) -> tuple[Errors, ...]:
    return tuple(
        each.times(UNLIKE_TIMES) if _has_scale(leaf) else Errors(math.inf, math.inf, math.inf)
        for each, leaf in zip(bounds, signature.outputs, strict=True)
    )
