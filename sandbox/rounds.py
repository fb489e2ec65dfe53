"""When a pair's rounds disclose one input set per "go", and before which parameters change: secret,
though early enough that a pair that is cut short has met both.
"""

from __future__ import annotations

import random

from sandbox.statistics import full_rounds
from sandbox.types import EvalConfig

RESTYLED_ROUNDS = 2
"""Of a pair, before which parameters change: never none, so that frozen weights cannot be lucky."""
MET_BY = 3
"""Rounds by which every pair has met a single-set round and new parameters, and before which none
ends early: else a slow cheat would pass for a slow kernel."""


def single_set(config: EvalConfig, secret: random.Random, *, judged: bool) -> list[bool]:
    """Of a pair's rounds, True for single-set ones: at least one, at a place that is met early.
    Where nobody is `judged` none is, and the others are as many.
    """
    if not judged:
        return [False] * full_rounds(config)
    count = config.rounds - full_rounds(config)
    kinds = [True] * count + [False] * full_rounds(config)
    secret.shuffle(kinds)
    while not any(kinds[:MET_BY]):
        secret.shuffle(kinds)
    return kinds


def restyled(rounds: int, secret: random.Random) -> set[int]:
    """Numbers of the rounds, of so many, before which parameters change."""
    early = secret.randrange(min(MET_BY, rounds))
    others = [number for number in range(rounds) if number != early]
    return {early, *secret.sample(others, min(RESTYLED_ROUNDS - 1, len(others)))}
