"""Which figures are measured again, in fresh processes with fresh seeds, and what must come of it.

A search decides on one pair, and the best of many figures is a lucky one: only a confirmation is
promoted, and only where the search had said the same. Pure functions of journal rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from agent.journals.recorded import Recorded
from agent.types import Attempt
from sandbox.figures import Interval
from sandbox.types import Evaluation

DISAGREEMENT = 0.10
"""A confirmation whose interval lies this far off the search's, as a ratio, makes no promotion."""
UNLIKELY_SPEEDUP = 3.0
"""From here a figure is confirmed before anything is compared with it, or proposed after it."""
BETTER = 1.1
"""Times the best confirmed figure of the task, to be confirmed during the search again."""
TWICE = 2.0
"""Times the best of a task's earlier rounds: above it, as above 3x, what a policy learns from is
abnormal (CUDA-L1, arXiv 2507.14111, stage 3)."""
CONFIRMATIONS = 3
"""Winners of one task that may fail their confirmation before it is given up."""


def promising(evaluation: Evaluation) -> bool:
    """Passed and faster, on however few pairs: worth confirming."""
    return evaluation.passed and evaluation.timing is not None and evaluation.timing.faster


def wins(evaluation: Evaluation) -> bool:
    """Passed, and faster than eager on enough pairs to be reported."""
    return evaluation.passed and evaluation.timing is not None and evaluation.timing.win


def agree(search: Interval | None, confirmation: Interval | None) -> bool:
    """Whether both figures may be of one speedup: their intervals meet, give or take 10 %.

    Intervals on both sides, because a search decides on one pair, whose figure alone is noise by
    design, and a shared CPU runs one side's kind of work 1.8 times slower for seconds on end and
    the other's 1.4 times: what was 13x then is 9.2x [7, 12] afterwards, and a win.
    """
    if search is None or confirmation is None:
        return False
    slack = 1 + DISAGREEMENT
    return search.low <= confirmation.high * slack and confirmation.low <= search.high * slack


def upheld(search: Evaluation, confirmation: Evaluation) -> bool:
    """A confirmation that wins by itself and agrees with the search: what may be promoted."""
    return wins(confirmation) and agree(search.speedup, confirmation.speedup)


def refuted(record: Recorded) -> bool:
    """Measured afresh, and not faster, or otherwise than the search said; a fault of ours refutes
    nothing. What is not refuted may have too few pairs to be promoted.
    """
    search, again = record.evaluation, checked(record)
    if search is None or again is None:
        return False
    return not (promising(again) and agree(search.speedup, again.speedup))


def told(record: Recorded) -> Attempt | None:
    """As those who propose are told of it: what a confirmation refuted by what that found."""
    attempt, confirmation = record.attempt, record.confirmation
    if attempt is None or confirmation is None or not refuted(record):
        return attempt
    return replace(attempt, evaluation=confirmation)


def checked(record: Recorded) -> Evaluation | None:
    """Its confirmation, where that says anything of the candidate: a fault of ours does not."""
    again = record.confirmation
    return again if again is not None and again.status.scored else None


def lower_bound(record: Recorded) -> float:
    """What records are ranked by, of the latest figure; 0 without a speedup."""
    figure = checked(record) or record.evaluation
    interval = None if figure is None else figure.speedup
    return 0.0 if interval is None else interval.low


def best_of(records: Sequence[Recorded]) -> Recorded | None:
    """The passed record with the highest lower bound, the earlier of equals; what a confirmation
    refuted comes after everything else.

    Where one is confirmed, only what the search itself had put above it comes before it: figures
    of a search and of a confirmation differ by more than neighbours do.
    """
    able = [r for r in records if r.attempt is not None and r.attempt.evaluation.speedup]
    confirmed = [r for r in able if _confirmed(r)]
    if confirmed:
        bar = max(map(_searched, confirmed))
        above = [r for r in able if r.confirmation is None and _searched(r) > bar]
        able = above or confirmed
    return max(able, key=lambda r: (not refuted(r), lower_bound(r)), default=None)


def reported(records: Sequence[Recorded]) -> Recorded | None:
    """Whose figure stands for the task: the best that was confirmed, whatever the search has put
    above it since and nothing upheld; without one the best.
    """
    return best_of([r for r in records if _confirmed(r)]) or best_of(records)


def winner_of(records: Sequence[Recorded]) -> Recorded | None:
    """The best record, if it is a win that has still to be confirmed; what could not be measured
    again through a fault of ours gives way to the next.
    """
    best = best_of([r for r in records if r.confirmation is None or checked(r) is not None])
    if best is None or best.evaluation is None or best.confirmation is not None:
        return None
    if sum(map(refuted, records)) >= CONFIRMATIONS:
        return None
    return best if promising(best.evaluation) else None


def unlikely(records: Sequence[Recorded]) -> Recorded | None:
    """A winner so fast that the search must not go on from it unconfirmed."""
    winner = winner_of(records)
    known = [lower_bound(r) for r in records if r.confirmation is not None and not refuted(r)]
    bar = max(UNLIKELY_SPEEDUP, BETTER * max(known, default=0.0))
    return winner if winner is not None and lower_bound(winner) >= bar else None


def abnormal(records: Sequence[Recorded]) -> list[Recorded]:
    """Whose search's figure no policy must learn from before it is measured again, best or not: it
    is above 3x, or above twice the best of the rounds before its own.
    """
    found: list[Recorded] = []
    best, bar = 0.0, UNLIKELY_SPEEDUP
    for _, of_round in groupby(records, key=lambda r: r.round):
        own = list(of_round)
        found += [r for r in own if _speedup(r.evaluation) > bar]
        best = max([best, *(_speedup(r.confirmation or r.evaluation) for r in own)])
        bar = min(UNLIKELY_SPEEDUP, TWICE * best) if best else UNLIKELY_SPEEDUP
    return found


def unverified(records: Sequence[Recorded]) -> Recorded | None:
    """The first abnormal one that was not measured again."""
    return next((r for r in abnormal(records) if r.confirmation is None), None)


def _speedup(evaluation: Evaluation | None) -> float:
    """0 without one."""
    interval = None if evaluation is None else evaluation.speedup
    return 0.0 if interval is None else interval.value


def _confirmed(record: Recorded) -> bool:
    first, second = record.evaluation, record.confirmation
    return first is not None and second is not None and upheld(first, second)


def _searched(record: Recorded) -> float:
    """The lower bound that the search found."""
    interval = None if record.evaluation is None else record.evaluation.speedup
    return 0.0 if interval is None else interval.low
