"""A candidate with more digits than the reference passes, where the reference has few."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

import sandbox.pairs.pair
import sandbox.timing
from sandbox.checking.bounds import timed_bounds
from sandbox.checking.pool import Case
from sandbox.evaluator import LocalEvaluator
from sandbox.machine import memory
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.trees import Layout
from sandbox.observation import CaseObservation, Errors, Failure, FailureKind
from sandbox.pairs import second_look
from sandbox.pairs.given import Given
from sandbox.pairs.keepsake import HandedOver
from sandbox.subjects.signature import Opening
from sandbox.subjects.subject import Subject
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task
from tests.sandbox.conftest import FAST, task_of

QUOTIENT = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x / x.sum(-1, keepdim=True)


def get_inputs():
    return [torch.randn(64, 48)]


def get_init_inputs():
    return []
"""
"""Of 64 sums one in a batch is near zero: its row carries the sum's error."""
TASK = task_of(QUOTIENT, "test/quotient")
UNSEEDED = task_of(
    QUOTIENT.replace("import torch\n", "import numpy\nimport torch\n", 1).replace(
        "torch.randn(64, 48)", "torch.from_numpy(numpy.random.randn(64, 48)).float()"
    ),
    "test/unseeded",
)
"""A seed of torch's tells nothing of its inputs."""
EXACT = "x = x.double(); return (x / x.sum(-1, keepdim=True)).float()"
COARSE = "return (x / x.sum(-1, keepdim=True)) * 1.01"


def config() -> EvalConfig:
    return replace(FAST, baselines=(), scales=(), changes=(), max_sets=second_look.MOST)


def judged(evaluator: LocalEvaluator, body: str, task: Task = TASK) -> Evaluation:
    source = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
    candidate = Candidate(task.id, Language.TORCH, f"{source}        {body}\n")
    return evaluator.evaluate(task, candidate, config())


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a second look found a round right, by turns: of most rounds, so little is allowed at
    the first.
    """

    def strict(case: Case) -> tuple[Errors, ...]:
        return tuple(bound.times(0.001) for bound in timed_bounds(case))

    monkeypatch.setattr(sandbox.timing, "timed_bounds", strict)
    found: list[bool] = []

    def look(*arguments: object) -> CaseObservation:
        case = second_look.second_look(*arguments)  # type: ignore[arg-type]
        found.append(case.within)
        return case

    monkeypatch.setattr(sandbox.pairs.pair, "second_look", look)
    return found


def test_more_digits_than_the_reference_has_are_right(
    evaluator: LocalEvaluator, looked: list[bool]
) -> None:
    assert judged(evaluator, EXACT).status is Status.PASSED
    assert looked
    assert all(looked)


def test_what_is_further_off_than_the_reference_stays_wrong(
    evaluator: LocalEvaluator, looked: list[bool]
) -> None:
    late = f"self.n = self.__dict__.get('n', 0) + 1\n        if self.n < 40:\n            {EXACT}"
    found = judged(evaluator, f"{late}\n        {COARSE}")
    assert found.status is Status.WRONG_VALUE
    assert looked
    assert not looked[-1]


def test_a_second_look_is_at_the_inputs_of_the_round_that_was(evaluator: LocalEvaluator) -> None:
    signature = evaluator.prepare(TASK, FAST).signature
    reference, _ = evaluator._stand.reference(TASK, FAST, Opening(known=signature))
    with closing(reference):
        reference.attach("inputs", Layout(signature.inputs, 4), signature.input_tree)
        given = Given(reference, reference, signature, FAST, lambda: None, new_weights=True)

        def values() -> torch.Tensor:
            return reference.set_bytes("inputs", 0, 4).clone()

        given.fill(4)
        used = values()
        with given.meanwhile_filled(3):
            pass
        assert not torch.equal(values(), used)
        assert given.refill()
        assert torch.equal(values(), used)
        given.fill(3)  # the next round does not have them again
        assert not torch.equal(values()[: 3 * len(used) // 4], used[: 3 * len(used) // 4])


def test_inputs_that_no_seed_makes_again_have_no_second_look(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, looked: list[bool]
) -> None:
    """Else the truth would be that of other inputs, and anything as near to it as those outputs are
    to each other.
    """
    monkeypatch.setattr(second_look, "OWN_NORM", 1e9)
    assert judged(evaluator, EXACT).status is Status.PASSED
    assert any(looked)
    looked.clear()
    found = judged(evaluator, EXACT, UNSEEDED)
    assert found.status is Status.WRONG_VALUE
    assert not any(looked)


def test_a_reference_of_which_no_digit_is_right_excuses_nothing(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, looked: list[bool]
) -> None:
    monkeypatch.setattr(second_look, "OWN_NORM", 0.0)
    assert judged(evaluator, EXACT).status is Status.WRONG_VALUE
    assert not any(looked)


@pytest.mark.parametrize("failing", ["attach", "clone"])
def test_without_room_for_the_truth_the_verdict_is_what_it_was(
    evaluator: LocalEvaluator,
    monkeypatch: pytest.MonkeyPatch,
    looked: list[bool],
    failing: str,
) -> None:
    def short(*_: object) -> None:
        raise memory.OutOfMemoryError("no room")

    attach = Subject.attach

    def attached(subject: Subject, name: str, *more: Any) -> None:
        attach(subject, name, *more)
        if name == "oracle":
            claimed = Failure("time", FailureKind.CLAIMED, ("OutOfMemoryError",), "no room")
            raise WorkerFailed(claimed)

    evaluator.prepare(TASK, config())
    if failing == "attach":
        monkeypatch.setattr(Subject, "attach", attached)
    else:
        monkeypatch.setattr(second_look, "_truth", short)
    assert judged(evaluator, EXACT).status is Status.WRONG_VALUE
    assert looked == [False]


def test_what_a_look_took_is_given_back(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, looked: list[bool]
) -> None:
    left: list[set[str]] = []
    discard = Subject.discard

    def seen(subject: Subject, name: str) -> None:
        before = subject.arena_bytes
        discard(subject, name)
        assert subject.worker.arena_bytes == subject.arena_bytes < before
        left.append(set(subject.arenas))

    monkeypatch.setattr(Subject, "discard", seen)
    assert judged(evaluator, EXACT).status is Status.PASSED
    assert len(left) == len(looked)
    assert all(arenas == {"inputs", "slots", "state"} for arenas in left)


def test_a_lone_calls_output_is_what_was_handed_over(
    evaluator: LocalEvaluator, monkeypatch: pytest.MonkeyPatch, looked: list[bool]
) -> None:
    """Not what is written to its slot by work that its end did not wait for."""
    take = HandedOver.take

    def taken(handed: HandedOver, index: int) -> None:
        slot = handed.subject.leaf("slots", index, 0)
        right = slot.clone()
        slot.mul_(1.001)  # as it is handed over
        take(handed, index)
        slot.copy_(right)

    back = HandedOver.put_back

    def put_back(handed: HandedOver) -> None:
        right = {index: handed.subject.leaf("slots", index, 0).clone() for index in handed._slots}
        back(handed)
        late.update(right)

    late: dict[int, torch.Tensor] = {}
    look = second_look.second_look

    def looking(given: Given, *more: Any) -> CaseObservation:
        for index, right in late.items():
            given.candidate.leaf("slots", index, 0).copy_(right)
        late.clear()
        return look(given, *more)

    monkeypatch.setattr(HandedOver, "take", taken)
    monkeypatch.setattr(HandedOver, "put_back", put_back)
    monkeypatch.setattr(second_look, "second_look", looking)
    assert judged(evaluator, EXACT).status is Status.WRONG_VALUE
    assert not looked[-1]
