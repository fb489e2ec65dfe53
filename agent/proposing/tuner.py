"""Searches the constants that a model's reply declares, without asking the model again.

Within one program: coordinate moves from its best variant, then pairs of moves, as the built-in
proposer makes them (agent/features/search.py; the exploratory moves of Hooke & Jeeves, "Direct
search", J. ACM 8, 1961). Which program gets the next variant: asynchronous successive halving (Li
et al., "A system for massively parallel hyperparameter tuning", MLSys 2020, algorithm 2), with the
number of variants tried as the resource: a program goes on to a rung of twice as many only while it
is among the best half of those that finished the rung below. Unlike there, programs that are there
get their first rung before any is promoted, since they are few, and the best of all always goes on.
Everything is read from the attempts' sources, so a resumed campaign tunes on alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.features.search import Features, Space, points
from agent.model import AwaitingReplies, ModelError
from agent.proposing.tuning import Template, template
from agent.strategies.lineage import log_speedup
from agent.strategies.types import TUNE
from agent.types import FIRST_TURN, Attempt, Proposal, Proposer, Turn
from sandbox.types import Task, digest

BESIDE = "+tuner"
"""Follows the name of whoever wrote the program that is tuned."""


@dataclass(frozen=True)
class Tuning:
    """Settings of the search beside the model (`tuning:` in a config)."""

    variants: int = 8
    """Of one program, at most, beside the reply's own."""
    first_rung: int = 2
    """Variants of every correct program that declares constants; the best half go on to twice as
    many, and so on."""
    share: float = 0.5
    """Of a round, at most; the strategy asks for the rest."""

    def __post_init__(self) -> None:
        if self.variants < 1 or self.first_rung < 1 or not 0 < self.share <= 1:
            raise ValueError("expected variants >= 1, first_rung >= 1, share above 0 and up to 1")


@dataclass
class Family:
    """The variants of one program, as far as they were tried."""

    base: Template
    """Of the first one seen."""
    proposer: str
    """Whose program it is."""
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def tried(self) -> int:
        """Variants that the tuner made or could have made, the first program not counted."""
        return len(self.attempts) - 1

    @property
    def best(self) -> Attempt:
        """The fastest; the earlier of equals."""
        return max(self.attempts, key=lambda a: _speed(a))


class TuningProposer:
    """Another proposer, with variants of what it found in up to a share of every round."""

    def __init__(self, inner: Proposer, settings: Tuning, seed: int = 0) -> None:
        self.name = inner.name
        self.wants_measured = inner.wants_measured
        self.inner, self.settings, self.seed = inner, settings, seed

    def unsupported(self, task: Task) -> str | None:
        return self.inner.unsupported(task)

    def propose(
        self, task: Task, history: Sequence[Attempt], n: int, turn: Turn = FIRST_TURN
    ) -> Sequence[Proposal]:
        """Variants first, then the inner proposer's; variants alone where it has no more, or its
        model cannot be asked.
        """
        known = {p.candidate.id for p in turn.repeats}
        most = max(1, int(n * self.settings.share)) if n > 1 else turn.round % 2
        made = variants(history, most, self.settings, self.seed, frozenset(known))
        if len(made) == n:
            return made
        try:
            return [*made, *self.inner.propose(task, history, n - len(made), turn)]
        except AwaitingReplies:
            raise
        except ModelError:
            if not made:
                raise
            return made


def variants(
    history: Sequence[Attempt],
    n: int,
    settings: Tuning,
    seed: int = 0,
    known: frozenset[str] = frozenset(),
) -> list[Proposal]:
    """Up to `n` variants worth measuring next, none of them tried or among `known`."""
    found = families(history)
    spent = {key: family.tried for key, family in found.items()}
    seen = {a.proposal.candidate.id for a in history} | known
    made: list[Proposal] = []
    barren: set[str] = set()
    while len(made) < n:
        able = {key: family for key, family in found.items() if key not in barren}
        key = next_family(able, spent, settings)
        if key is None:
            break
        proposal = _variant(found[key], seen, seed)
        if proposal is None:
            barren.add(key)
            continue
        spent[key] += 1
        seen.add(proposal.candidate.id)
        made.append(proposal)
    return made


def families(history: Sequence[Attempt]) -> dict[str, Family]:
    """Programs that declare constants and of which some variant is correct, the oldest first."""
    found: dict[str, Family] = {}
    for attempt in history:
        base = template(attempt.proposal.candidate)
        if base is not None:
            whose = attempt.proposal.proposer.removesuffix(BESIDE)
            found.setdefault(base.key, Family(base, whose)).attempts.append(attempt)
    return {k: f for k, f in found.items() if log_speedup(f.best) is not None}


def next_family(found: dict[str, Family], spent: dict[str, int], settings: Tuning) -> str | None:
    """Whose variant is worth the next measurement: the oldest program below the first rung, else
    the highest rung that may be entered, else the best of all; None where all have had what they
    deserve.
    """
    below = next((key for key in found if spent[key] < settings.first_rung), None)
    if below is not None:
        return below
    order = sorted(found, key=lambda key: -_speed(found[key].best))
    for lower, upper in reversed(list(itertools.pairwise(_rungs(settings)))):
        finished = [key for key in order if spent[key] >= lower]
        for key in finished[: len(finished) // 2]:
            if spent[key] < upper:
                return key
    return next((key for key in order[:1] if spent[key] < settings.variants), None)


def _rungs(settings: Tuning) -> list[int]:
    """Variants at which programs are compared, each twice the one below, up to the most."""
    rungs = [settings.first_rung]
    while rungs[-1] < settings.variants:
        rungs.append(min(2 * rungs[-1], settings.variants))
    return rungs


def _variant(family: Family, seen: set[str], seed: int) -> Proposal | None:
    """The next untried point of the program; None where its pool is used up."""
    base, best = family.base, family.best
    pool = {name: [_value(v) for v in values] for name, values in base.pool.items()}
    space = Space(pool, (_values(base.point),), lambda point: True)
    history = [_placed(attempt) for attempt in family.attempts]
    for point in points(space, history, digest([seed, base.key, len(history)])):
        values = {name: str(value) for name, value in point.items()}
        candidate = base.at(values)
        if candidate.id not in seen:
            features = {f"{TUNE} {name}": value for name, value in values.items()}
            parents = (best.proposal.candidate.id,)
            return Proposal(candidate, family.proposer + BESIDE, TUNE, parents, features)
    return None


def _placed(attempt: Attempt) -> Attempt:
    """With its point as its features, as the search reads them."""
    found = template(attempt.proposal.candidate)
    point = {} if found is None else _values(found.point)
    return replace(attempt, proposal=replace(attempt.proposal, features=point))


def _values(point: Mapping[str, str]) -> Features:
    return {name: _value(text) for name, text in point.items()}


def _value(text: str) -> str | int:
    """An integer where it reads the same: the search moves along those step by step."""
    try:
        return int(text) if str(int(text)) == text else text
    except ValueError:
        return text


def _speed(attempt: Attempt) -> float:
    speed = log_speedup(attempt)
    return float("-inf") if speed is None else speed
