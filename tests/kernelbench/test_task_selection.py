from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelbench.published_flaws import is_degenerate
from kernelbench.selection import SUBSETS, Entry, Item, Selection, parse_selection
from kernelbench.suite import TaskSummary
from kernelbench.suite_view import summary_lines
from sandbox.errors import TaskError

NUMBERS = st.integers(0, 999_999)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda ends: Item(min(ends), max(ends)))
NAMES = st.builds(
    lambda n, name: Item(n, n, f"{n}_{name}"),
    NUMBERS,
    st.from_regex(r"[A-Za-z_]{1,9}", fullmatch=True),
)
ITEMS = st.lists(RANGES | NAMES, max_size=4).map(tuple)
SELECTIONS = (
    st.just(Selection())
    | st.builds(Selection, st.sampled_from([1, 2, 3]), ITEMS)
    | st.builds(Selection, subset=st.sampled_from(sorted(SUBSETS)))
)


def entries(level: int, *names: str) -> list[Entry]:
    return [Entry(level, int(name.split("_")[0]), name) for name in names]


@given(SELECTIONS)
def test_a_selection_is_read_back_from_its_text(selection: Selection) -> None:
    assert parse_selection(str(selection)) == selection


@given(st.text(max_size=12))
def test_any_text_is_a_selection_or_a_task_error(text: str) -> None:
    with contextlib.suppress(TaskError):
        assert isinstance(parse_selection(text), Selection)


@given(SELECTIONS, st.sets(st.tuples(st.sampled_from([1, 2, 3]), st.integers(1, 100)), max_size=20))
def test_pick_is_a_sorted_subset_of_the_selected_levels(
    selection: Selection, places: set[tuple[int, int]]
) -> None:
    known = [Entry(level, number, f"{number}_X") for level, number in places]
    try:
        picked = selection.pick(known, "here")
    except TaskError:
        return
    assert picked == sorted(picked, key=lambda e: (e.level, e.number))
    assert {*picked} <= {e for e in known if e.level in selection.levels}
    assert picked


def test_numbers_sort_as_numbers_not_as_text() -> None:
    known = entries(1, "100_C", "19_B", "2_A")
    assert [e.number for e in parse_selection("level1").pick(known, "here")] == [2, 19, 100]


def test_ranges_names_and_numbers_combine() -> None:
    known = entries(1, "1_A", "2_B", "3_C", "40_D")
    picked = parse_selection("level1/1-2,40_D").pick(known, "here")
    assert [e.name for e in picked] == ["1_A", "2_B", "40_D"]


def test_two_problems_of_one_number_are_refused_and_a_name_picks_one() -> None:
    known = entries(1, "1_A", "19_ReLU", "19_Relu_")
    with pytest.raises(TaskError, match="here: level1/19 is both 19_ReLU and 19_Relu_; expected"):
        parse_selection("level1").pick(known, "here")
    [picked] = parse_selection("level1/19_Relu_").pick(known, "here")
    assert picked.name == "19_Relu_"


@pytest.mark.parametrize(("name", "count"), [("representative", 35), ("sound", 20)])
def test_a_subset_has_a_name(name: str, count: int) -> None:
    known = [Entry(level, n, f"{n}_X") for level in (1, 2, 3) for n in range(1, 101)]
    picked = parse_selection(name).pick(known, "here")
    assert {e.level for e in picked} == {1, 2, 3}
    assert len(picked) == count
    assert any(is_degenerate(e.task_id) for e in picked) is (name == "representative")
    without = [e for e in known if e != picked[-1]]
    with pytest.raises(TaskError, match=rf"here: {name} has level3/43, which is not there"):
        parse_selection(name).pick(without, "here")


@pytest.mark.parametrize("text", ["level1/7", "level1/1,7-9", "level1/1_Other", "level2"])
def test_a_part_that_finds_nothing_is_an_error(text: str) -> None:
    with pytest.raises(TaskError, match=r"here: (level1 has no|no problems of level2)"):
        parse_selection(text).pick(entries(1, "1_A", "2_B"), "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("level4/1", "level4 needs Hugging Face models"),
        ("level9", "level9 does not exist; expected level1"),
        ("1-10", "selection '1-10' is not understood; expected level1"),
        ("level1/a-b", "item 'a-b' is not understood"),
        ("level1/1,", "item '' is not understood"),
        ("level1/9-3", "range 9-3 is empty"),
    ],
)
def test_a_wrong_selection_says_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        parse_selection(text)


def test_a_list_keeps_its_columns_in_a_terminal_and_its_lines_in_a_pipe() -> None:
    found = [
        TaskSummary(
            "builtin/softmax", "Softmax of every row, the largest first.", "float32", ("a",)
        ),
        TaskSummary("builtin/mse", "", "float32", ("a", "b")),
    ]
    first, second, *_ = piped = summary_lines(found)
    assert len(piped) == 2
    narrow = summary_lines(found, 64)
    assert max(map(len, narrow)) <= 64
    assert " ".join(line[first.index("Softmax") :] for line in narrow[:2]) == found[0].about
    assert narrow[-1] == second
    assert summary_lines(found, 30) == piped, "too narrow for columns"
