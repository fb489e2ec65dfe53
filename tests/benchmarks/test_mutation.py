"""A share of the mutation testing of the judge, and its generator; the whole is a benchmark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.mutation.__main__ import report, row_of
from benchmarks.mutation.kernel import Kernel
from benchmarks.mutation.kernels.catalogue import ALL, kernels
from benchmarks.mutation.operators import OPERATORS, Mutant, excluded, mutants
from benchmarks.mutation.verifier import Verifier
from sandbox.types import Evaluation, Status

BY_NAME = {kernel.name: kernel for kernel in ALL}
SHARE = {
    "rms_norm": ("tail 1", "no_epsilon 1", "no_scale 1", "sum_in_ten_bits 1", "stale_output 1"),
    "variance_offset": ("mean_of_squares", "biased", "last_block 2"),
    "top_k_ties": ("tail 2", "index_not_moved", "tie_twice"),
}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifier]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # as tests/sandbox: one thread for each worker
    found = Verifier("cpu", tmp_path_factory.mktemp("cache"))
    yield found
    found.close()
    os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("rms_norm", marks=pytest.mark.slow),
        pytest.param("variance_offset", marks=pytest.mark.slow),
        "top_k_ties",
    ],
)
def test_the_right_kernel_passes_and_wrong_ones_do_not(verifier: Verifier, name: str) -> None:
    kernel = BY_NAME[name]
    task = kernel.reference("cpu")
    pools = verifier.pools(task)
    right = verifier.judge(task, kernel.candidate("cpu"), pools)
    assert right.status is Status.PASSED, right.detail
    made = {mutant.name: mutant for mutant in mutants(kernel, "cpu")}
    for wrong in SHARE[name]:
        found = verifier.judge(task, made[wrong].kernel.candidate("cpu"), pools)
        assert found.status is Status.WRONG_VALUE, f"{wrong}: {found.status} {found.detail}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [kernel.name for kernel in kernels("cpu")])
def test_no_correct_kernel_is_refused(verifier: Verifier, name: str) -> None:
    task = BY_NAME[name].reference("cpu")
    found = verifier.judge(task, BY_NAME[name].candidate("cpu"), verifier.pools(task))
    assert found.status is Status.PASSED, found.detail


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_every_mutant_is_another_python_file(kernel: Kernel) -> None:
    device = kernel.devices()[0]
    right = kernel.candidate(device).source
    sources = [mutant.kernel.candidate(device).source for mutant in mutants(kernel, device)]
    assert len({right, *sources}) == len(sources) + 1
    for source in sources:
        compile(source, "candidate.py", "exec")


def test_every_operator_is_used_and_every_exclusion_excludes_something() -> None:
    made = {mutant.name.partition(" ")[0] for k in ALL for mutant in mutants(k, "cuda")}
    assert {operator.name for operator in OPERATORS} <= made
    for kernel in ALL:
        excluded(kernel)
    with pytest.raises(ValueError, match="nothing makes"):
        excluded(replace(ALL[0], skip={"tail 99": "there are not that many"}))


def test_fifteen_tasks_and_more_have_a_kernel_on_both_devices() -> None:
    for device in ("cpu", "cuda"):
        assert len({kernel.reference(device).id for kernel in kernels(device)}) >= 15


def rows_of(kernel: Kernel, survivors: int, refused: int) -> list[dict[str, object]]:
    def judged(mutant: Mutant, status: Status) -> dict[str, object]:
        return row_of(mutant, Evaluation("t", "c", "e", status))

    wrong = list(mutants(kernel, "cpu"))
    return [
        judged(Mutant(kernel, "correct", ""), Status.WRONG_VALUE if refused else Status.PASSED),
        *(judged(m, Status.PASSED) for m in wrong[:survivors]),
        *(judged(m, Status.WRONG_VALUE) for m in wrong[survivors:]),
    ]


@pytest.mark.parametrize(
    ("survivors", "refused", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)], ids=str
)
def test_only_a_clean_run_ends_well(survivors: int, refused: int, code: int) -> None:
    kernel = BY_NAME["softmax"]
    rows = rows_of(kernel, survivors, refused)
    assert report(rows, [kernel], "cpu", 1) == code
    assert report(rows[:-1], [kernel], "cpu", 1) == 1
