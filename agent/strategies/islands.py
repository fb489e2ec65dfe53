"""Populations that evolve apart and exchange their best: a pure view of the attempts.

Every attempt lives on one island: the one its question named, else that of a parent, else (seeds of
the built-in proposer, other strategies' candidates) one after the other in turn; what says no
generation of its own, as a tuned variant, is of the one after those before it. At the start of
every `migrate_every`-th round the best of each island is copied to the next one in a ring: the
stepping-stone model of parallel genetic algorithms (Cantu-Paz 1998, "A survey of parallel genetic
algorithms", section 5). FunSearch (Romera-Paredes et al. 2024, Methods) instead empties its weak
half now and then, which a budget of tens of candidates does not allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.strategies.lineage import log_speedup, writable
from agent.strategies.novelty import distinct
from agent.types import Attempt

ISLAND, GENERATION = "island", "generation"
"""Among a proposal's features: where it was born, and in which round of its task."""


@dataclass(frozen=True)
class Member:
    attempt: Attempt
    island: int
    generation: int


def members(history: Sequence[Attempt], islands: int) -> list[Member]:
    """Every attempt with its home, in the order made."""
    found: dict[str, Member] = {}
    settled, newest = 0, -1
    for attempt in history:
        proposal = attempt.proposal
        island, generation = proposal.features.get(ISLAND), proposal.features.get(GENERATION)
        parent = next((found[p] for p in proposal.parents if p in found), None)
        if isinstance(generation, int):
            newest = generation
        else:  # Before anything of its round that says its own.
            generation = newest + 1
        if not isinstance(island, int):
            if parent is not None:
                island = parent.island
            else:
                island, settled = settled, settled + 1
        found[proposal.candidate.id] = Member(attempt, island % islands, generation)
    return list(found.values())


def populations(
    found: Sequence[Member], islands: int, migrate_every: int, migrants: int, round: int
) -> list[list[Attempt]]:
    """The correct candidates of each island at the start of a round, migrants included, equal
    programs once.
    """
    living: list[list[Attempt]] = [[] for _ in range(islands)]
    able = [m for m in found if log_speedup(m.attempt) is not None and writable(m.attempt)]
    born = 0
    for until in [*range(migrate_every, round + 1, migrate_every), None]:
        for member in able:
            if member.generation >= born and (until is None or member.generation < until):
                living[member.island].append(member.attempt)
        if until is None:
            break
        born = until
        leaving = [_best(population, migrants) for population in living]
        for island, visitors in enumerate(leaving):
            living[(island + 1) % islands] += visitors
    return [distinct(population) for population in living]


def _best(population: Sequence[Attempt], count: int) -> list[Attempt]:
    """The fastest, the earlier of equals first."""
    order = sorted(population, key=lambda attempt: -(log_speedup(attempt) or 0.0))
    return distinct(order)[:count]
