"""When a round's inputs are made: before it, or while the last one's outputs are compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.pairs.given import Given
from sandbox.types import EvalConfig


class Reference:
    """Says what it was asked, and when that was answered."""

    def __init__(self) -> None:
        self.worker, self.stage, self.told = self, "reference", list[Any]()

    def finish_ours(self) -> None:
        self.told.append("finish")

    def send(self, op: str, *, sets: list[int], **_: Any) -> None:
        self.told.append((op, len(sets)))

    def reply(self, **_: Any) -> None:
        self.told.append("reply")


def given(*, mutates: bool = False, floating: bool = True) -> Any:
    output = SimpleNamespace(floating=floating)
    signature = SimpleNamespace(mutates=mutates, outputs=(output,), state=(), domains=())
    return Given(Reference(), None, signature, EvalConfig(), lambda: None, new_weights=True)  # type: ignore[arg-type]


def test_the_next_rounds_values_are_made_while_a_block_runs_and_used_once() -> None:
    both = given()
    told = both.reference.told
    with both.meanwhile_filled(4):
        told.append("block")
    assert told == ["finish", ("fill", 4), "block", "reply"]
    both.fill(4)
    assert told[4:] == []
    both.fill(4)
    assert told[4:] == ["finish", ("fill", 4), "reply"]


def test_too_few_values_are_made_again() -> None:
    both = given()
    with both.meanwhile_filled(2):
        pass
    both.fill(4)
    assert [t for t in both.reference.told if isinstance(t, tuple)] == [("fill", 2), ("fill", 4)]


@pytest.mark.parametrize("needs", [{"mutates": True}, {"floating": False}])
def test_inputs_that_the_comparison_needs_are_left_alone(needs: dict[str, bool]) -> None:
    both = given(**needs)
    with both.meanwhile_filled(4):
        assert both.reference.told == []
    both.fill(4)
    assert ("fill", 4) in both.reference.told


def test_a_block_that_fails_leaves_no_answer_behind() -> None:
    both = given()
    with pytest.raises(ZeroDivisionError), both.meanwhile_filled(4):
        raise ZeroDivisionError
    assert both.reference.told[-1] == "reply"
    both.fill(4)
    assert both.reference.told.count(("fill", 4)) == 2
