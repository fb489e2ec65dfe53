"""When a pair's rounds disclose one input set per "go", before which parameters change, and which
batches hold hidden inputs: secret, though early enough that a pair that is cut short has met all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from sandbox.judging.statistics import full_rounds
from sandbox.types import EvalConfig

RESTYLED_ROUNDS = 2
"""Of a pair, before which parameters change: never none, so that frozen weights cannot be lucky."""
HIDING_ROUNDS = 2
"""Batches of a pair that hold hidden inputs: few enough that a median does without them."""
MET_BY = 3
"""Rounds by which every pair has met a single-set round, new parameters and hidden inputs, and
before which none ends early: else a slow cheat would pass for a slow kernel."""


def single_set(config: EvalConfig, secret: random.Random, *, judged: bool) -> list[bool]:
    """Of a pair's rounds, True for single-set ones: at least one, and both kinds are met early.
    Where nobody is `judged` none is, and the others are as many.
    """
    if not judged:
        return [False] * full_rounds(config)
    count = config.rounds - full_rounds(config)
    kinds = [True] * count + [False] * full_rounds(config)
    secret.shuffle(kinds)
    while set(kinds[:MET_BY]) != set(kinds):
        secret.shuffle(kinds)
    return kinds


def restyled(rounds: int, secret: random.Random) -> set[int]:
    """Numbers of the rounds, of so many, before which parameters change."""
    early = secret.randrange(min(MET_BY, rounds))
    others = [number for number in range(rounds) if number != early]
    return {early, *secret.sample(others, min(RESTYLED_ROUNDS - 1, len(others)))}


def short_round(kinds: Sequence[bool], hiding: set[int], secret: random.Random) -> int | None:
    """Number of the batch, among rounds of these kinds, that ends before it should: what calls
    update is compared at the end alone, where who knows it updates nothing before. None where there
    is no batch for it behind the first, of which an output is kept, and beside those that are
    `hiding`.
    """
    batches = [number for number, single in enumerate(kinds) if not single]
    able = [number for number in batches[1:] if number not in hiding]
    return secret.choice(able) if able else None


def hiding_rounds(kinds: Sequence[bool], secret: random.Random) -> set[int]:
    """Numbers of the batches, among rounds of these kinds, that hold hidden inputs."""
    batches = [number for number, single in enumerate(kinds) if not single]
    if not batches:
        return set()
    early = secret.choice([number for number in batches if number < MET_BY] or batches[:1])
    others = [number for number in batches if number != early]
    return {early, *secret.sample(others, min(HIDING_ROUNDS - 1, len(others)))}
