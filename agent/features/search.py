"""Which features to try next: coordinate moves from the best attempt, pairs of moves when those are
used up.

The pool is searched, not enumerated. Everything is a function of the history and a seed. A value
that has only ever been part of failures is not proposed again once something has passed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agent.types import Attempt

Order = Literal["search", "random"]
DRAWS = 1000
"""Of one call; the pools hold some thousands of points."""

Features = Mapping[str, str | int]
"""A point of the pool: a value for each feature."""
Move = tuple[str, str | int]
Pool = Mapping[str, Sequence[str | int]]
"""The values that each feature may have."""


@dataclass(frozen=True)
class Space:
    """The pool for one task, its starting points, and what cannot be combined."""

    pool: Pool
    starts: tuple[Features, ...]
    fits: Callable[[Features], bool]


def best(history: Sequence[Attempt], pool: Pool) -> Attempt | None:
    """The fastest passed attempt that has a point in this pool; an untimed one counts as 1.0."""
    passed = [a for a in history if a.evaluation.passed and set(a.proposal.features) == set(pool)]
    return max(passed, key=_speed, default=None)


def _speed(attempt: Attempt) -> float:
    speedup = attempt.evaluation.speedup
    return math.log(speedup.value) if speedup is not None else 0.0


def banned(history: Sequence[Attempt]) -> frozenset[Move]:
    """Values seen in candidates that failed by their own fault and in none that passed."""
    passed = {m for a in history if a.evaluation.passed for m in a.proposal.features.items()}
    if not passed:
        return frozenset()
    failed = {
        m
        for a in history
        if a.evaluation.status.scored and not a.evaluation.passed
        for m in a.proposal.features.items()
    }
    return frozenset(failed - passed)


def points(space: Space, history: Sequence[Attempt], seed: str) -> Iterator[Features]:
    """Points in the order they are worth trying; may repeat what the history holds. Finite."""
    yield from space.starts
    fastest = best(history, space.pool)
    centre = fastest.proposal.features if fastest is not None else space.starts[0]
    ban, rng = banned(history), random.Random(seed)
    moves = [m for m in neighbours(space.pool, centre) if m not in ban]
    order = ranked(moves, history, rng)
    for feature, value in order:
        yield from _valid(space, {**centre, feature: value})
    pairs = [(a, b) for a, b in itertools.combinations(order, 2) if a[0] != b[0]]
    weights = {
        pair: rng.random() * (1 + order.index(pair[0]) + order.index(pair[1])) for pair in pairs
    }
    for one, two in sorted(pairs, key=lambda pair: weights[pair]):
        yield from _valid(space, {**centre, one[0]: one[1], two[0]: two[1]})


def drawn(space: Space, seed: str) -> Iterator[Features]:
    """Points of the pool by chance, all that fit equally likely: what a search has to beat. Finite;
    some come more than once.
    """
    rng = random.Random(seed)
    for _ in range(DRAWS):
        point = {feature: rng.choice(list(values)) for feature, values in space.pool.items()}
        yield from _valid(space, point)


def _valid(space: Space, point: Features) -> Iterator[Features]:
    if space.fits(point):
        yield point


def neighbours(pool: Pool, centre: Features) -> list[Move]:
    """The next value up and down of an ordered feature, every other value of a named one."""
    moves: list[Move] = []
    for feature, values in pool.items():
        own = centre[feature]
        if all(isinstance(v, int) for v in values) and own in values:
            place = list(values).index(own)
            near = [values[i] for i in (place + 1, place - 1) if 0 <= i < len(values)]
        else:
            near = [v for v in values if v != own]
        moves += [(feature, v) for v in near]
    return moves


def ranked(moves: Sequence[Move], history: Sequence[Attempt], rng: random.Random) -> list[Move]:
    """Moves by the mean log speedup seen with their value against without it; unseen ones first."""
    passed = [a for a in history if a.evaluation.passed]
    overall = sum(map(_speed, passed)) / len(passed) if passed else 0.0
    scores: dict[Move, tuple[float, float]] = {}
    for move in moves:
        feature, value = move
        seen = [_speed(a) for a in passed if a.proposal.features.get(feature) == value]
        gain = sum(seen) / len(seen) - overall if seen else 0.1
        scores[move] = (-gain, rng.random())
    return sorted(moves, key=lambda m: scores[m])
