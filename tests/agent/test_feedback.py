"""What a model is told about each kind of failure, and about a measurement."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.prompts import feedback
from agent.prompts.message import Message
from agent.prompts.render import (
    Scene,
    example,
    render_contrast,
    render_crossover,
    render_improve,
    render_propose,
    render_repair,
)
from agent.types import Attempt, Measured, Proposal
from rewards.types import Reward
from sandbox.evidence import Evidence, Layer, Weight
from sandbox.figures import Baseline, Interval, Pair, Timing
from sandbox.types import (
    Candidate,
    CaseResult,
    EvalConfig,
    Evaluation,
    Language,
    Shape,
    Status,
    Task,
)

SNAPSHOTS = Path(__file__).parent / "snapshots"
KERNEL = """\
import cupy

SRC = r'''
extern "C" __global__ void f(float* x) {
  int i = threadIdx.x;
  x[i] = foo;
}
'''
"""
CUDA = Candidate("t", Language.CUDA, KERNEL)
FAILED = Evaluation("t", CUDA.id, "quick", Status.COMPILE_ERROR)
NVRTC = 'kernel.cu(4): error: identifier "foo" is undefined\n\n1 error detected in "kernel.cu".\n'
GCC = """\
[1/2] c++ -MMD -MF main.o.d -DTORCH_EXTENSION_NAME=k -c /tmp/w/main.cpp -o main.o
FAILED: main.o
/tmp/w/main.cpp: In function 'void f()':
/tmp/w/main.cpp:7:3: error: 'foo' was not declared in this scope
    7 |   foo(x);
      |   ^~~
ninja: build stopped: subcommand failed.
"""
MEASURED = Measured(
    eager_ms=2.0,
    baselines_ms={"compile": 1.5},
    floor_ms=0.5,
    copy_bytes_s=4.0e12,
    matmul_flops={"float32": 5.1e13, "tf32": 4.0e14},
    launch_s=2e-6,
    cache_bytes=50 << 20,
)
FAST = Timing(2.0, 1.0, Interval(2.0, 1.9, 2.1), 0.01, (Pair(2.0, 1.0, 0.69, 8),) * 3, 8, 0.6)
PASSED = replace(
    FAILED, status=Status.PASSED, timing=FAST, baselines=(Baseline("compile", 1.5, None),)
)


def test_a_compilers_errors_come_with_their_lines_and_without_its_command():
    shown = feedback.build_errors(CUDA, replace(FAILED, build_log=GCC))
    assert shown.splitlines() == [
        "main.cpp:7:3: error: 'foo' was not declared in this scope",
        "    7 |   foo(x);",
        "      |   ^~~",
    ]


def test_a_line_that_the_compiler_only_numbers_is_shown_from_the_source():
    shown = feedback.build_errors(CUDA, replace(FAILED, build_log=NVRTC))
    assert 'kernel.cu(4): error: identifier "foo" is undefined' in shown
    assert ">    4 |   x[i] = foo;" in shown
    assert "     3 |   int i = threadIdx.x;" in shown


def test_only_the_first_errors_of_many_are_shown():
    log = "\n".join(f"k.cu({i}): error: number {i}" for i in range(1, 31))
    shown = feedback.build_errors(replace(CUDA, source="x"), replace(FAILED, build_log=log))
    assert "number 6" in shown
    assert "number 7" not in shown
    assert "[24 more errors]" in shown


def test_a_log_without_an_error_line_is_shown_by_its_end():
    shown = feedback.build_errors(CUDA, replace(FAILED, build_log="collect2: ld returned 1\n"))
    assert shown == "collect2: ld returned 1"


@pytest.mark.parametrize("status", sorted(feedback.ADVICE))
def test_every_kind_of_failure_has_its_own_words_in_the_repair_prompt(status):
    evaluation = replace(FAILED, status=status, detail="as it was")
    text = render_repair(Scene(TASK, Language.CUDA), CUDA, evaluation)[1]["content"]
    assert f"Verdict: {status.value} — as it was" in text
    assert feedback.ADVICE[status] in text


@pytest.mark.parametrize(
    ("candidate_ms", "words"),
    [
        (0.004, "it is bound by launches: one costs 2.0 us of its 4.0 us"),
        (0.62, "little can be left to gain"),
        (0.9, "it is bound by memory traffic"),
        (9.0, "memory traffic alone does not explain its time"),
    ],
)
def test_what_limits_a_correct_candidate_follows_from_the_measured_floors(candidate_ms, words):
    evaluation = replace(PASSED, timing=replace(FAST, candidate_ms=candidate_ms))
    assert words in "\n".join(feedback.limits(evaluation, MEASURED))


def test_the_roofline_is_told_as_a_share_and_a_rate():
    [line, *_] = feedback.limits(PASSED, MEASURED)
    assert "takes at least 0.6 ms: it is at 60 % of that roofline, 2400 of 4000 GB/s" in line
    assert feedback.limits(replace(PASSED, timing=replace(FAST, floor_ms=None)), None) == []


def test_registers_and_spills_are_told_as_its_process_reported_them():
    line = "kernel f: 255 registers a thread, 48 bytes of local memory, 0 bytes shared"
    evidence = (Evidence(Layer.RUNTIME, Weight.CLEAN, ("cudnn.benchmark: x", line)),)
    assert feedback.limits(replace(PASSED, evidence=evidence), MEASURED)[0] == line


def test_hardware_counters_are_told_and_nothing_else_that_a_profile_says():
    line = "counter dram__bytes_read.sum: read from DRAM 33.55 MB"
    facts = ("97% of device time in kernels that are no library's", line, "no hardware counters: x")
    evidence = (Evidence(Layer.PROVENANCE, Weight.CLEAN, facts),)
    assert feedback.counter_claims(replace(PASSED, evidence=evidence)) == [line]
    assert feedback.limits(replace(PASSED, evidence=evidence), MEASURED)[0] == line


@pytest.mark.parametrize(
    ("task", "policy", "words"),
    [
        ({"exact_float32": True}, None, "exact float32 is required"),
        ({"device": "cuda"}, EvalConfig(), "TF32 allowed"),
        ({"device": "cuda"}, EvalConfig(torch_default_precision=True), "torch's default"),
        ({}, EvalConfig(), "float32"),
        ({"dtype": "bfloat16"}, EvalConfig(), ""),
        ({}, None, ""),
    ],
)
def test_the_precision_policy_is_what_the_protocol_says(task, policy, words):
    said = feedback.precision_policy(replace(TASK, **task), policy)
    assert words in said
    assert bool(said) == bool(words)


# --- whole prompts, as they were agreed ---------------------------------------------------------

TASK = Task(
    "builtin/bias_relu",
    example("reference"),
    "cpu",
    shapes=(Shape("given"), Shape("odd", (("ROWS", 7), ("COLUMNS", 33)))),
)
CPP = Candidate(TASK.id, Language.CPP, "# a kernel\nclass ModelNew: ...\n")
SCENE = Scene(TASK, Language.CPP, {"CPU": "EPYC", "cores": 2}, MEASURED, EvalConfig())
WRONG = Evaluation(
    TASK.id,
    CPP.id,
    "quick",
    Status.WRONG_VALUE,
    "odd: output 0: worst element; 25 % of the elements are wrong",
    cases=(CaseResult("odd", False, 0.25, 5e-6, "output 0"), CaseResult("given", True, 1e-8, 5e-6)),
)
BROKEN = replace(WRONG, status=Status.COMPILE_ERROR, detail="build: error", build_log=GCC, cases=())
GOOD = replace(PASSED, task_id=TASK.id, candidate_id=CPP.id)
SLOW = replace(GOOD, timing=replace(FAST, candidate_ms=4.0, speedup=Interval(0.5, 0.4, 0.6)))
TRIED = Attempt(Proposal(CPP, "m", "fsr improve", features={"feature": "tiling"}), WRONG, Reward(0))
PROMPTS = {
    "propose": lambda: render_propose(SCENE),
    "propose_recalled": lambda: render_propose(
        replace(
            SCENE,
            recalled=("add, relu in float32, memory-bound: cpp with threads: 2.00x [1.90, 2.10]",),
            recalled_source=CPP.source,
        )
    ),
    "repair_wrong_value": lambda: render_repair(SCENE, CPP, WRONG),
    "repair_compile_error": lambda: render_repair(SCENE, CPP, BROKEN),
    "improve": lambda: render_improve(SCENE, CPP, GOOD),
    "improve_feature": lambda: render_improve(SCENE, CPP, GOOD, "tiling", [TRIED]),
    "contrast": lambda: render_contrast(
        SCENE, [Attempt(Proposal(CPP, "m"), e, Reward(1)) for e in (SLOW, GOOD)]
    ),
    "crossover": lambda: render_crossover(
        SCENE, [Attempt(Proposal(CPP, "m"), e, Reward(1)) for e in (SLOW, GOOD)]
    ),
}


def as_text(messages: list[Message]) -> str:
    return "\n".join(f"=== {m['role']}\n{m['content']}" for m in messages) + "\n"


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_reads_as_agreed(name):
    """WRITE_SNAPSHOTS=1 writes them anew: read the difference before it is committed."""
    path = SNAPSHOTS / f"{name}.txt"
    text = as_text(PROMPTS[name]())
    if os.environ.get("WRITE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()


def test_the_contract_with_tunable_constants_reads_as_agreed():
    path = SNAPSHOTS / "contract_tuning.txt"
    text = render_propose(replace(SCENE, tuning=True))[0]["content"]
    plain = render_propose(SCENE)[0]["content"]
    if os.environ.get("WRITE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()
    assert "tune:" in text
    assert "tune:" not in plain


@pytest.mark.parametrize("language", [Language.CUDA, Language.CUDA_INLINE, Language.TRITON])
def test_the_contract_of_each_language_reads_as_agreed(language):
    path = SNAPSHOTS / f"contract_{language.value}.txt"
    text = render_propose(replace(SCENE, language=language))[0]["content"]
    if os.environ.get("WRITE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()
