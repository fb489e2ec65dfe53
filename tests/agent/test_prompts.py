"""What the prompts say, and that their worked examples hold."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from jinja2 import UndefinedError

from agent.prompts.feedback import tail
from agent.prompts.render import (
    FOLDER,
    NO_CODE,
    TITLES,
    Scene,
    environment,
    example,
    fenced,
    render_improve,
    render_propose,
    render_repair,
)
from agent.proposing.replies import extract
from sandbox.figures import Baseline, Interval, Pair, Timing
from sandbox.types import Candidate, CaseResult, Evaluation, Language, Shape, Status, Task

TASK = Task(
    "builtin/bias_relu",
    example("reference"),
    "cpu",
    shapes=(Shape("given"), Shape("odd", (("ROWS", 7), ("COLUMNS", 33)))),
)
FACTS: Mapping[str, object] = {"processor": "AMD EPYC", "cores": 2}
CANDIDATE = Candidate(TASK.id, Language.CPP, "class ModelNew: ...\n")
FAILED = Evaluation(
    TASK.id,
    CANDIDATE.id,
    "quick",
    Status.WRONG_VALUE,
    "the last row is wrong",
    cases=(CaseResult("odd", False, 0.25, 5e-6), CaseResult("given", True, 1e-8, 5e-6)),
    build_log="main.cpp:3: warning: unused\n",
    stderr="Traceback\n",
)
PAIRS = (Pair(2.0, 1.0, 0.693, 8),) * 3
TIMED = replace(
    FAILED,
    status=Status.PASSED,
    timing=Timing(2.0, 1.0, Interval(2.0, 1.9, 2.1), 0.01, PAIRS, sets=8, floor_ms=0.5),
    baselines=(Baseline("compile", 1.5, None), Baseline("cuda_graph", None, None, "failed")),
)


@pytest.mark.parametrize("language", TITLES)
def test_the_propose_prompt_holds_the_contract_the_task_and_the_machine(language: Language) -> None:
    system, user = render_propose(Scene(TASK, language, FACTS))
    assert (system["role"], user["role"]) == ("system", "user")
    assert example(language.value).strip() in system["content"]
    assert TASK.source.strip() in user["content"]
    for words in ("ROWS = 7, COLUMNS = 33", "dtype: float32", "- processor: AMD EPYC"):
        assert words in user["content"]
    for words in ("Caching", "Skipping work", "static buffer", "streams", "hyper-parameters"):
        assert words in system["content"]


def test_a_machine_without_facts_has_no_section() -> None:
    assert "# The machine" not in render_propose(Scene(TASK, Language.CPP, {}))[1]["content"]


def test_the_repair_prompt_holds_source_verdict_cases_and_logs() -> None:
    user = render_repair(Scene(TASK, Language.CPP, FACTS), CANDIDATE, FAILED)[1]["content"]
    for words in (
        CANDIDATE.source,
        "WRONG_VALUE — the last row is wrong",
        "case odd: relative error 0.25, allowed 5e-06",
        "main.cpp:3: warning",
        "Traceback",
    ):
        assert words in user
    assert "case given" not in user


def test_the_repair_prompt_counts_the_cases_that_it_does_not_show() -> None:
    cases = tuple(CaseResult(f"case{i}", False, 0.25, 5e-6) for i in range(9))
    failed = replace(FAILED, cases=cases)
    user = render_repair(Scene(TASK, Language.CPP, FACTS), CANDIDATE, failed)[1]["content"]
    assert "case3" in user
    assert "case4" not in user
    assert "- and 5 more cases" in user


def test_a_reply_without_code_is_repaired_by_its_reason() -> None:
    candidate = replace(CANDIDATE, source=f"{NO_CODE}the reply is empty\n")
    user = render_repair(Scene(TASK, Language.CPP, FACTS), candidate, FAILED)[1]["content"]
    assert "It held no usable code: the reply is empty." in user
    assert NO_CODE not in user


def test_the_improve_prompt_holds_the_interval_the_times_and_hints() -> None:
    user = render_improve(Scene(TASK, Language.CPP, FACTS), CANDIDATE, TIMED)[1]["content"]
    for words in ("2.00x, 95 % interval 1.90x to 2.10x", "1 ms; eager 2 ms", "compile: 1.5 ms"):
        assert words in user
    assert "cuda_graph" not in user
    assert "OpenMP" not in user
    assert "omp simd" in user
    gpu = render_improve(Scene(TASK, Language.CUDA, FACTS), CANDIDATE, TIMED)[1]["content"]
    assert "warp primitives" in gpu


@pytest.mark.parametrize("language", TITLES)
def test_the_worked_example_is_a_reply_we_would_accept(language: Language) -> None:
    source = example(language.value)
    assert extract(fenced(source, "python"), "stop").source == source
    compile(source, f"{language.value}.py", "exec")


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.j2")), ids=lambda path: path.name)
def test_no_template_line_ends_in_blanks(path: Path) -> None:
    assert all(line == line.rstrip() for line in path.read_text(encoding="utf-8").splitlines())


def test_a_missing_value_fails_instead_of_rendering_empty() -> None:
    with pytest.raises(UndefinedError):
        environment().get_template("propose.j2").render(task=TASK)


def test_equal_arguments_render_equal_text() -> None:
    first = render_repair(Scene(TASK, Language.CPP, FACTS), CANDIDATE, FAILED)
    assert first == render_repair(Scene(TASK, Language.CPP, FACTS), CANDIDATE, FAILED)


def test_a_fence_cannot_be_closed_by_what_it_holds() -> None:
    assert fenced("a\n```\nb") == "````\na\n```\nb\n````"


def test_a_log_keeps_its_end_from_a_line_on() -> None:
    log = "first\n" + "x" * 50 + "\nlast error\n"
    assert tail(log, 20) == "[...]\nlast error"
    assert tail("short\n") == "short"


def test_torch_is_not_a_language_we_ask_for() -> None:
    with pytest.raises(ValueError, match="no prompts for language 'torch'"):
        render_propose(Scene(TASK, Language.TORCH, FACTS))


@pytest.mark.parametrize("shape", [(37, 1000), (3, 5, 8)])
def test_the_cpp_example_computes_what_its_reference_does(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    reference = load("reference", tmp_path).Model(shape[-1])
    candidate = load("cpp", tmp_path).ModelNew(shape[-1])
    with torch.no_grad():
        candidate.bias.copy_(reference.bias.normal_())
        x = torch.randn(shape).transpose(0, -2)
        first = candidate(x)
        assert torch.equal(first, reference(x))
        candidate(x + 1)
        assert torch.equal(first, reference(x))


def test_the_cuda_example_compiles_for_hopper() -> None:
    nvrtc = pytest.importorskip("cupy", reason="needs NVRTC: the extra cuda13").cuda.nvrtc
    source = example("cuda").split('r"""')[1].split('"""')[0]
    program = nvrtc.createProgram(source, "example.cu", (), ())
    nvrtc.compileProgram(program, ("-arch=sm_90",))


def load(name: str, folder: Path) -> ModuleType:
    path = folder / f"{name}_example.py"
    path.write_text(example(name), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"{name}_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
