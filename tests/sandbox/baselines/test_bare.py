"""Baselines are timed by their calls alone, and rightly."""

from __future__ import annotations

import math
from collections import Counter, deque
from contextlib import closing
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import Any

import pytest

from sandbox.baselines.bare import BareGroup, BarePair
from sandbox.evaluator import LocalEvaluator
from sandbox.judging.statistics import summarise
from sandbox.machine.handle import WorkerFailed
from sandbox.observation import RoundObservation
from sandbox.pairs.given import Given
from sandbox.pairs.pair import ProcessPair
from sandbox.subjects.plan import Plan
from sandbox.subjects.signature import Opening
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, Language
from tests.sandbox.conftest import FAST, SCALE, forward, task_of

TASK = task_of(SCALE.replace("1.0", "3.5"))
MUTATING = SCALE.replace("return torch.relu(x)", "return torch.relu(x.add_(1.0))")
PAIRS = 5
"""On a busy machine a neighbour may void every round of one: calls here take microseconds."""


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


def alike(rounds: list[RoundObservation]) -> bool:
    return abs(median(pair.log_speedup for pair in summarise(rounds))) < math.log(3)


@pytest.mark.slow
def test_a_round_of_a_baseline_is_its_calls_alone(
    evaluator: LocalEvaluator, done: Counter[str]
) -> None:
    prepared = evaluator.prepare(TASK, FAST)
    baselines = evaluator._preparer.baselines
    with baselines.races(TASK, FAST, prepared.signature, prepared.plan) as races:
        done.clear()
        rounds = races.race(None, deque(), prepared.null)
        counted = done.copy()
        # A neighbour may disturb the one round that a pair had, but not in three races alike.
        again = (races.race(None, deque(), prepared.null) for _ in range(2))
        assert any(map(alike, chain([rounds], again)))
    assert {pair.rounds for pair in summarise(rounds)} <= set(range(1, FAST.rounds + 1))
    assert counted["bare turns"] == 2 * len(rounds)
    assert not {"whole turns", "compared", "poisoned", "restyled"} & set(counted)
    assert counted["filled"] == FAST.min_pairs


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


def bare_rounds(evaluator: LocalEvaluator, plan: Plan, first_line: str) -> list[RoundObservation]:
    """Of the reference and a candidate that begins so."""
    signature = evaluator.prepare(TASK, FAST).signature
    source = forward(first_line, "return x * y + 3.5")
    stand = evaluator._stand
    reference, _ = stand.reference(TASK, FAST, Opening(known=signature))
    candidate = Candidate(TASK.id, Language.TORCH, source)
    with closing(reference), closing(stand.candidate(TASK, candidate, FAST)) as subject:
        stand.open_candidate(subject, signature)
        shared = (signature, plan, FAST, lambda: None, stand.quiet)
        group = BareGroup(0, reference, [subject], *shared)
        group.start(30.0)
        return [seen for _, seen in group.rounds()]


def lean(evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """As calls of gigabytes have it."""
    prepared = evaluator.prepare(TASK, FAST)
    monkeypatch.setattr("sandbox.subjects.plan.LEAN_BYTES", 1)
    found = prepared.plan.leaner(replace(prepared.signature, latency_s=0.002))
    assert (found.sets, found.warm_sets, found.timed) == (1, [0], [0] * 4)
    return found


@pytest.mark.parametrize("large", [False, True])
def test_a_slower_side_is_as_much_slower_as_it_is(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    plan = lean(evaluator, monkeypatch) if large else evaluator.prepare(TASK, FAST).plan
    for _ in range(PAIRS):
        rounds = bare_rounds(evaluator, plan, "__import__('time').sleep(0.004)")
        counted = [seen for seen in rounds if not seen.void]
        if counted:
            break
    assert counted
    for seen in counted:
        assert seen.calls == plan.sets * plan.repeats
        assert 0.004 <= (seen.candidate_s - seen.reference_s) / seen.calls < 0.012


def test_outputs_of_large_calls_are_let_go_of_one_by_one(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = """
        import weakref
        self.made = [one for one in self.__dict__.get("made", []) if one() is not None]
        if len(self.made) > 2:
            raise RuntimeError(f"{len(self.made)} outputs are held")
        out = x * y + 3.5
        self.made.append(weakref.ref(out))
        return out
    """
    assert bare_rounds(evaluator, lean(evaluator, monkeypatch), watching)
    with pytest.raises(WorkerFailed, match="3 outputs are held"):
        bare_rounds(evaluator, replace(evaluator.prepare(TASK, FAST).plan, sets=8), watching)


def test_small_calls_and_what_writes_its_inputs_have_no_lean_batches(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = evaluator.prepare(TASK, FAST)
    assert prepared.plan.leaner(prepared.signature) is prepared.plan
    monkeypatch.setattr("sandbox.subjects.plan.LEAN_BYTES", 1)
    mutating = replace(prepared.signature, mutates=True)
    assert prepared.plan.leaner(mutating) is prepared.plan
    slow = prepared.plan.leaner(replace(prepared.signature, latency_s=0.3))
    assert (slow.sets, slow.repeats) == (1, 1)
