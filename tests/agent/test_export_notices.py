"""What an export says at its end: what is left out, and which kernels no call will use."""

from pathlib import Path

import pytest

from agent.export.formats import check_formats, export_formats
from tests.agent.export_library import cpp_campaign

pytestmark = pytest.mark.slow

ELSEWHERE = {"device": "cpu", "cpu": "Other", "threads": "96"}
NAMES = ("package", "kernels", "kernelbench")
CPP = "--format kernelbench leaves out test/{}: KernelBench has no back end for language cpp"
NONE = "no operator runs its kernel by default: every call is the reference's"
ALONE = (
    "bias_relu: the reference runs: faster than eager, not faster than compile "
    "(TOLD_KERNELS_AGAINST=eager runs it)"
)
"""Compiled, the reference is 1.25 times as fast; `bias_relu` is 1.2 times as fast."""


def told(run: Path, to: Path, names: tuple[str, ...] = NAMES) -> list[str]:
    lines = list[str]()
    formats = check_formats(names, "told_kernels", ())
    export_formats(
        [run], to, formats, "cpu", lambda: pytest.fail("nothing is judged"), lines.append
    )
    return lines


def test_what_is_left_out_or_unused_is_a_line_each_and_once(tmp_path):
    run = cpp_campaign(tmp_path / "run", bias_relu="speedup=1.2", signs="speedup=1.6")
    left_out = [CPP.format("bias_relu"), CPP.format("signs")]
    assert told(run, tmp_path / "out") == [*left_out, ALONE]


def test_a_library_of_which_no_kernel_runs_says_so_first(tmp_path):
    run = cpp_campaign(tmp_path / "run", bias_relu="speedup=1.2")
    assert told(run, tmp_path / "out", ("package",)) == [NONE, ALONE]


def test_a_kernel_of_another_machine_is_told_where_it_was_measured(tmp_path):
    run = cpp_campaign(tmp_path / "run", ELSEWHERE, signs="speedup=1.6")
    wanted = "on any other the reference runs until warpsmith revalidate"
    assert told(run, tmp_path / "out", ("package",)) == [f"signs: measured on Other x96; {wanted}"]


def test_kernels_that_all_run_are_nothing_to_tell(tmp_path):
    run = cpp_campaign(tmp_path / "run", signs="speedup=1.6")
    assert told(run, tmp_path / "out", ("package", "modelnew")) == []
