"""Which constant is a problem's batch, and what the problem is at a smaller one."""

import os
import re
from collections import Counter
from itertools import islice

import pytest

from kernelbench.scaling import NAMES, smaller
from kernelbench.suite import load_tasks
from sandbox.errors import TaskError
from sandbox.types import Shape, Task

PROBLEM = """
{constants}
class Model: ...


def get_inputs():
    return [torch.rand({size}, 7)]


def get_init_inputs():
    return []
"""


def task(constants: str, size: str = "batch_size", **more) -> Task:
    return Task("t", PROBLEM.format(constants=constants, size=size), "cpu", **more)


def namespace(of: Task) -> dict[str, object]:
    found: dict[str, object] = {}
    exec(of.source, found)  # the text is above
    return found


def test_the_batch_is_halved_down_to_one_and_every_size_is_another_task():
    whole = task("batch_size = 12  # rows\ndim = 7\ndef other():\n    batch_size = 3")
    found = list(smaller(whole))
    assert [str(scaling) for scaling, _ in found] == [
        "batch_size 6 of 12",
        "batch_size 3 of 12",
        "batch_size 1 of 12",
    ]
    assert [namespace(t)["batch_size"] for _, t in found] == [6, 3, 1]
    assert "batch_size = 6  # rows\ndim = 7" in found[0][1].source
    assert len({whole.hash, *(t.hash for _, t in found)}) == 4
    assert {t.id for _, t in found} == {whole.id}


def test_what_is_made_of_the_batch_follows_it():
    whole = task("é = 'ü'; batch_size = 4 * 2\nshape = (batch_size, 3)", "*shape")
    [(_, half)] = islice(smaller(whole), 1)
    assert namespace(half)["shape"] == (4, 3)


def test_every_shape_is_scaled_alike():
    shapes = (Shape("large", (("B", 64), ("N", 5))), Shape("odd", (("B", 3),)), Shape("as it is"))
    found = list(smaller(task("B = 8\nN = 9", "B", shapes=shapes)))
    sizes = [[dict(s.constants).get("B") for s in t.shapes] for _, t in found]
    assert sizes == [[large, 1, None] for large in (32, 16, 8, 4, 2, 1)]
    assert [namespace(t)["B"] for _, t in found] == [4, 2, 1, 1, 1, 1]
    assert dict(found[0][1].shapes[0].constants)["N"] == 5
    assert str(found[0][0]) == "B 32 of 64"


@pytest.mark.parametrize(
    ("constants", "size", "why"),
    [
        ("M = 8", "M", "get_inputs\\(\\) reads no constant named batch_size"),
        ("batch_size = 8", "16", "get_inputs\\(\\) reads no constant"),
        ("batch_size = int('8')", "batch_size", "not one integer"),
        ("batch_size = True", "batch_size", "not one integer"),
        ("batch_size = 8\nbatch_size += 1", "batch_size", "not one integer"),
        ("batch_size = 8\nif 1:\n    batch_size = 4", "batch_size", "not one integer"),
        ("def batch_size(): ...", "batch_size()", "not one integer"),
        ("batch_size = 1", "batch_size", "batch_size is 1 already"),
    ],
)
def test_a_problem_without_a_batch_says_why_it_is_not_scaled(constants, size, why):
    with pytest.raises(TaskError, match=why):
        list(smaller(task(constants, size)))


@pytest.mark.skipif(
    "WARPSMITH_KERNELBENCH" not in os.environ, reason="WARPSMITH_KERNELBENCH names no checkout"
)
def test_all_of_kernelbench_but_plain_matrix_products_can_be_scaled():
    names = Counter[str]()
    for each in load_tasks(f"kernelbench:{os.environ['WARPSMITH_KERNELBENCH']}", "cuda"):
        try:
            [(scaling, half)] = islice(smaller(each), 1)
        except TaskError:
            names["none"] += 1
        else:
            names[scaling.constant] += 1
            assert re.search(
                rf"^{scaling.constant} *= *{scaling.used}\b", half.source, re.MULTILINE
            )
    assert (names["none"], names["batch_size"], sum(names.values())) == (17, 232, 250)
    assert set(names) - {"none"} <= set(NAMES)
