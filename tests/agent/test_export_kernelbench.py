"""KernelBench's form: names, conversion, judging again, what is left out, its own checker."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.export.formats import check_formats
from agent.export.kernelbench_runs import export_kernelbench, refusal
from agent.export.standalone import Judge
from kernelbench.submissions import read_submissions
from sandbox.errors import ConfigError
from sandbox.figures import Interval
from sandbox.records import to_record
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task
from tests.agent.export_cuda import cuda_artefact, cuda_evaluation

CHECKOUT = os.environ.get("KERNELBENCH_CHECKOUT", "")
CHECKER = Path(CHECKOUT) / "src" / "kernelbench" / "kernel_static_checker.py"
ELSEWHERE = {"device": "cuda", "gpu": "GH200", "arch": "sm_90"}


@dataclass
class Again:
    """Judges by script, and remembers what it judged."""

    status: Status = Status.PASSED
    seen: list[Candidate] = field(default_factory=list)

    def of(self, task: Task) -> Judge:
        return self

    def __call__(self, task: Task, candidate: Candidate, config: EvalConfig) -> Evaluation:
        self.seen.append(candidate)
        return cuda_evaluation(candidate, self.status)


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def test_a_winner_of_a_kernelbench_problem_lies_where_its_scripts_look(tmp_path):
    artefact = cuda_artefact("kernelbench/level1/19_ReLU")
    judge = Again()
    [path, _] = export_kernelbench([artefact], tmp_path, judge.of)
    name = "level_1_problem_19_sample_0_kernel.py"
    assert path == tmp_path / "runs" / "h200" / name
    [entry] = manifest(tmp_path)["kernels"]
    [judged] = judge.seen
    assert judged.language is Language.CUDA_INLINE
    assert path.read_text().endswith(judged.source)
    assert (entry["candidate_id"], entry["converted_from"]) == (judged.id, artefact.candidate.id)
    assert entry["status"] == "PASSED"
    found = read_submissions(tmp_path / "runs" / "h200", [artefact.task])
    assert [s.candidate.language for s in found.submissions] == [Language.CUDA_INLINE]
    assert read_submissions(tmp_path, [artefact.task]).submissions[0].origin == str(path)


def test_of_two_kernels_of_one_file_the_better_stays_and_the_other_is_told(tmp_path):
    fast, slow = cuda_artefact(), cuda_artefact()
    finding = slow.findings[-1]
    timing = replace(finding.evaluation.timing, speedup=Interval(1.2, 1.1, 1.3))
    worse = replace(finding.evaluation, timing=timing, environment=ELSEWHERE)
    slow = replace(slow, findings=(replace(finding, evaluation=worse),))
    for order in ((fast, slow), (slow, fast)):
        export_kernelbench(order, tmp_path, lambda task: None)
        [entry] = manifest(tmp_path)["kernels"]
        assert entry["before_conversion"] == to_record(fast.findings[-1].evaluation.speedup)
        [told] = manifest(tmp_path)["left_out"].values()
        assert told == "modelnew/test__bias_relu.py holds another kernel, not GH200 sm_90's"


def test_without_its_device_a_converted_kernel_says_that_it_was_not_judged(tmp_path):
    [path, _] = export_kernelbench([cuda_artefact()], tmp_path, lambda task: None)
    assert path == tmp_path / "modelnew" / "test__bias_relu.py"
    assert "# Judged:      not yet" in path.read_text()
    [entry] = manifest(tmp_path)["kernels"]
    assert (entry["status"], entry["speedup"]) == ("not judged", None)


@pytest.mark.slow
@pytest.mark.parametrize("language", [Language.TRITON, Language.CUDA_INLINE])
def test_what_kernelbench_can_run_is_not_converted(tmp_path, language):
    judge = Again()
    artefact = cuda_artefact(language=language)
    [path, _] = export_kernelbench([artefact], tmp_path, judge.of)
    assert path.read_text().endswith(artefact.candidate.source)
    assert not judge.seen


@pytest.mark.parametrize(
    ("artefact", "status", "reason"),
    [
        (cuda_artefact(), Status.WRONG_VALUE, "as load_inline it is WRONG_VALUE"),
        (cuda_artefact(language=Language.CPP), Status.PASSED, "no back end for language cpp"),
        (cuda_artefact(source="import cupy\ncupy.zeros(3)"), Status.PASSED, "uses cupy.zeros"),
        (cuda_artefact(source="import cupy\ntry: f()\nfinally: g()"), Status.PASSED, "`try`"),
    ],
    ids=["wrong", "cpp", "cupy", "try"],
)
def test_what_is_left_out_is_told(tmp_path, artefact, status, reason):
    [only] = export_kernelbench([artefact], tmp_path, Again(status).of)
    assert only.name == "manifest.json"
    assert reason in manifest(tmp_path)["left_out"]["test/bias_relu"]


@pytest.mark.slow
def test_a_pass_statement_does_not_stand_in_the_way(tmp_path):
    source = cuda_artefact().candidate.source + "\n\nclass Empty:\n    pass\n"
    [path, _] = export_kernelbench([cuda_artefact(source=source)], tmp_path, Again().of)
    assert path.read_text().endswith("class Empty:\n    ...\n")


@pytest.mark.slow
def test_an_export_replaces_the_one_before(tmp_path):
    export_kernelbench([cuda_artefact("kernelbench/level1/19_ReLU")], tmp_path, Again().of)
    export_kernelbench([cuda_artefact()], tmp_path, Again().of)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("x = 1  # pass", False),
        ("// one pass\nbypass()", False),
        ('"""Two pass."""', True),
        ("import threading", True),
        ("except ValueError:", True),
        ("class A(torch.Tensor): ...", True),
    ],
)
def test_words_that_kernelbench_refuses_are_known(text, refused):
    assert (refusal(text) is not None) is refused


@pytest.mark.skipif(not CHECKER.is_file(), reason="KERNELBENCH_CHECKOUT names no checkout")
@pytest.mark.parametrize("language", [Language.CUDA, Language.TRITON, Language.CUDA_INLINE])
def test_kernelbenchs_own_checker_accepts_what_is_exported(tmp_path, language):
    spec = importlib.util.spec_from_file_location("their_checker", CHECKER)
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    [path, _] = export_kernelbench([cuda_artefact(language=language)], tmp_path, Again().of)
    [entry] = manifest(tmp_path)["kernels"]
    valid, errors, _ = checker.validate_kernel_static(path.read_text(), entry["backend"], "fp32")
    assert valid, errors


@pytest.mark.parametrize(
    ("formats", "package", "archs", "told"),
    [
        (["wheel"], "a_b", [], "format is 'wheel'; expected one of modelnew, package"),
        (["package"], "A", [], "expected a name such as tuned_kernels"),
        (["package"], "a_b", ["90"], "architecture is '90'; expected one such as sm_90"),
    ],
)
def test_bad_choices_are_one_clear_line(formats, package, archs, told):
    with pytest.raises(ConfigError, match=told):
        check_formats(formats, package, archs)


@pytest.mark.parametrize("licence", ["Apache 2", "MIT or later", "unkown", ""])
def test_a_licence_is_an_spdx_expression(licence):
    with pytest.raises(ConfigError, match=f"licence is {licence!r}; expected an SPDX expression"):
        check_formats(["package"], "a_b", [], licence)
    assert check_formats(["package"], "a_b", [], "mit or apache-2.0").licence == "MIT OR Apache-2.0"
    assert check_formats(["package"], "a_b", []).licence == "unknown"
