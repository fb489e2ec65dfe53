"""Prepared tasks are kept as far as there is room, those used last longest."""

import pytest

from sandbox.errors import InvalidReference
from sandbox.judging.invalid import NoRoom
from sandbox.prepare import Preparation
from sandbox.prepared import KEPT_SHARE, Prepared, Refused, valid

STOCHASTIC = Refused("stochastic")


class Of(Preparation):
    """Of a size, and nothing else."""

    def __init__(self, size: int) -> None:
        object.__setattr__(self, "size", size)

    @property
    def bytes(self) -> int:
        return self.size  # type: ignore[attr-defined]


@pytest.fixture
def kept() -> Prepared:
    """With room for 100 bytes."""
    return Prepared("cpu", int(100 / KEPT_SHARE["cpu"]) + 1)


def test_what_was_used_longest_ago_makes_room(kept: Prepared) -> None:
    a, b, c = Of(40), Of(40), Of(40)
    kept.keep("a", a)
    kept.keep("b", b)
    assert kept.get("a") is kept.use("a") is a
    kept.keep("c", c)
    assert kept.get("b") is None
    assert kept.values() == [a, c]


def test_the_last_one_stays_however_large_and_why_a_task_is_invalid_costs_nothing(
    kept: Prepared,
) -> None:
    kept.keep("refused", STOCHASTIC)
    kept.keep("small", Of(1))
    huge = Of(1000)
    kept.keep("huge", huge)
    assert kept.values() == [huge]
    kept.keep("refused", STOCHASTIC)
    assert kept.values() == [STOCHASTIC], "what was used last stays"


def test_forgotten_cases_leave_what_is_known_of_invalid_tasks(kept: Prepared) -> None:
    kept.keep("refused", STOCHASTIC)
    kept.keep("a", Of(1))
    kept.forget_cases()
    assert kept.values() == [STOCHASTIC]
    with pytest.raises(InvalidReference, match="stochastic"):
        valid(STOCHASTIC)


def test_what_had_no_room_is_told_so_every_time(kept: Prepared) -> None:
    kept.keep("large", Refused("96 GiB", no_room=True))
    for _ in range(2):
        with pytest.raises(NoRoom, match="96 GiB"):
            valid(kept.use("large"))
