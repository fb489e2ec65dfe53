"""Baselines are timed by their calls alone, and rightly."""

from __future__ import annotations

import math
from collections import Counter, deque
from contextlib import closing
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from sandbox.bare import BarePair
from sandbox.evaluator import LocalEvaluator
from sandbox.given import Given
from sandbox.pair import ProcessPair
from sandbox.statistics import summarise
from sandbox.subject import Opening, Subject
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

TASK = task_of(SCALE.replace("1.0", "3.5"))
MUTATING = SCALE.replace("return torch.relu(x)", "return torch.relu(x.add_(1.0))")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is done to inputs and outputs, and which rounds there were."""
    count: Counter[str] = Counter()

    def counted(owner: Any, name: str, told: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            count[told] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    counted(Given, "_filling", "filled")
    counted(Given, "unchanged", "compared")
    counted(Given, "restyle", "restyled")
    counted(Subject, "poison", "poisoned")
    counted(BarePair, "turn", "bare turns")
    counted(ProcessPair, "run_reference", "whole turns")
    return count


def test_a_round_of_a_baseline_is_its_calls_alone(
    evaluator: LocalEvaluator, done: Counter[str]
) -> None:
    prepared = evaluator.prepare(TASK, FAST)
    baselines = evaluator._preparer.baselines
    with baselines.races(TASK, FAST, prepared.signature, prepared.plan) as races:
        done.clear()
        rounds = races.race(None, deque(), prepared.null)
    assert {pair.rounds for pair in summarise(rounds)} <= set(range(1, FAST.rounds + 1))
    assert done["bare turns"] == 2 * len(rounds)
    assert (done["whole turns"], done["compared"], done["poisoned"], done["restyled"]) == (0,) * 4
    assert done["filled"] == 2 * FAST.min_pairs  # for warming up, and once for its rounds
    # Of one pair a neighbour may disturb the single round that it had.
    assert abs(median(pair.log_speedup for pair in summarise(rounds))) < math.log(3)


def test_a_reference_that_changes_its_inputs_has_new_ones_every_round(
    evaluator: LocalEvaluator, done: Counter[str]
) -> None:
    task = task_of(MUTATING)
    prepared = evaluator.prepare(task, FAST)
    assert prepared.signature.mutates
    baselines = evaluator._preparer.baselines
    with baselines.races(task, FAST, prepared.signature, prepared.plan) as races:
        done.clear()
        rounds = races.race(None, deque(), prepared.null)
    assert (done["bare turns"], done["whole turns"]) == (0, len(rounds))
    assert done["filled"] >= len(rounds)


def test_the_null_experiment_has_whole_rounds(
    evaluator: LocalEvaluator, done: Counter[str]
) -> None:
    evaluator.prepare(task_of(SCALE.replace("1.0", "3.625")), FAST)
    assert done["bare turns"] == 0
    assert done["whole turns"] == done["compared"] / 2 > 0


def test_where_no_candidate_is_to_come_the_null_experiment_is_bare_and_serves_none(
    evaluator: LocalEvaluator, done: Counter[str]
) -> None:
    task, alone = task_of(SCALE.replace("1.0", "3.75")), replace(FAST, baselines_only=True)
    assert evaluator.figures(task, alone).seconds["null"] > 0
    assert done["bare turns"] > 0 == done["whole turns"]
    assert not evaluator.figures(task, alone).seconds
    assert evaluator.figures(task, FAST).seconds["null"] > 0
    assert done["whole turns"] > 0
    assert FAST.id != alone.id


def test_a_slower_side_is_as_much_slower_as_it_is(evaluator: LocalEvaluator) -> None:
    prepared = evaluator.prepare(TASK, FAST)
    late = Candidate(
        TASK.id,
        Language.TORCH,
        forward("__import__('time').sleep(0.004)", "return x * y + 3.5"),
    )
    stand, signature = evaluator._stand, prepared.signature
    opening = Opening(known=signature)
    reference, _ = stand.reference(TASK, FAST, opening)
    with closing(reference), closing(stand.candidate(TASK, late, FAST)) as subject:
        stand.open_candidate(subject, signature)
        pair = BarePair(
            0,
            reference,
            subject,
            signature,
            prepared.plan,
            FAST,
            lambda: None,
            stand.quiet,
        )
        pair.start(30.0)
        rounds = [seen for seen, _ in pair.rounds([])]
    assert rounds
    for seen in rounds:
        assert seen.calls == prepared.plan.sets
        assert 0.004 <= (seen.candidate_s - seen.reference_s) / seen.calls < 0.012
