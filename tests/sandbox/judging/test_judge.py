"""Observation -> status, exhaustively; pure; faults of ours are never scored; records."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.evidence import Evidence, Kind, Layer, Weight
from sandbox.figures import Baseline, Interval, Timing
from sandbox.judging import judge as judging
from sandbox.judging import layers
from sandbox.judging.judge import accused_by_clock, judge, repeated
from sandbox.judging.statistics import Null
from sandbox.observation import (
    CaseObservation,
    Errors,
    Failure,
    FailureKind,
    Observation,
    RoundObservation,
)
from sandbox.records import from_record, to_record
from sandbox.static.scan import Scan
from sandbox.types import CaseResult, EvalConfig, Evaluation, Status

CONFIG = EvalConfig()
NULL = Null((0.01, -0.02, 0.01))
BOUND = Errors(1e-5, 1e-4, 1e-3)
GOOD = CaseObservation("given", (Errors(1e-7, 1e-7, 1e-7),), (BOUND,))
BAD = replace(GOOD, errors=(Errors(1e-4, 1e-7, 1e-7),))


def rounds_of(candidate_s: float, single_s: float | None = None) -> tuple[RoundObservation, ...]:
    """Three pairs; 10 calls of 1 ms by the reference in each batch."""
    alone = candidate_s if single_s is None else single_s
    return tuple(
        found
        for pair in range(3)
        for found in (
            RoundObservation(pair, False, 10, 0.01, 10 * candidate_s),
            RoundObservation(pair, False, 10, 0.01, 10 * candidate_s),
            RoundObservation(pair, True, 4, 0.004, 4 * alone),
        )
    )


SEEN = Observation("task", "candidate", cases=(GOOD,), rounds=rounds_of(5e-4), sets=10)


def failing(kind: FailureKind, *types: str, stage: str = "verify") -> Observation:
    return replace(SEEN, failure=Failure(stage, kind, types, "words\nmore words"))


VERDICTS = [
    (SEEN, Status.PASSED),
    (replace(SEEN, rounds=()), Status.PASSED),
    (replace(SEEN, source=Scan("no ModelNew")), Status.REJECTED),
    (replace(failing(FailureKind.DIED), rejected="empty"), Status.REJECTED),
    (failing(FailureKind.FAULT), Status.SANDBOX_ERROR),
    (failing(FailureKind.TIMEOUT), Status.TIMEOUT),
    (failing(FailureKind.MEMORY), Status.OUT_OF_MEMORY),
    (failing(FailureKind.PROTOCOL), Status.REWARD_HACK),
    (failing(FailureKind.AWAKE), Status.REWARD_HACK),
    (failing(FailureKind.DIED), Status.RUNTIME_ERROR),
    (failing(FailureKind.CLAIMED), Status.RUNTIME_ERROR),
    (failing(FailureKind.CLAIMED, "ValueError", "Exception"), Status.RUNTIME_ERROR),
    (failing(FailureKind.CLAIMED, "SystemExit", "BaseException"), Status.RUNTIME_ERROR),
    (failing(FailureKind.CLAIMED, "IndentationError", "SyntaxError"), Status.COMPILE_ERROR),
    (failing(FailureKind.CLAIMED, "BuildFailed", "Exception"), Status.COMPILE_ERROR),
    (failing(FailureKind.CLAIMED, "CompileException"), Status.COMPILE_ERROR),
    (failing(FailureKind.CLAIMED, "MemoryError"), Status.OUT_OF_MEMORY),
    (failing(FailureKind.CLAIMED, "OutOfMemoryError", "RuntimeError"), Status.OUT_OF_MEMORY),
    (failing(FailureKind.CLAIMED, "ContractError"), Status.REJECTED),
    (replace(SEEN, cases=()), Status.SANDBOX_ERROR),
    (replace(SEEN, cases=(GOOD, replace(GOOD, structure_differs="3"))), Status.WRONG_SHAPE),
    (replace(SEEN, cases=(replace(GOOD, foreign_type="Late"),)), Status.REWARD_HACK),
    (replace(SEEN, cases=(replace(GOOD, shape_differs="(3,)"),)), Status.WRONG_SHAPE),
    (replace(SEEN, cases=(replace(GOOD, dtype_differs="half"),)), Status.WRONG_DTYPE),
    (replace(SEEN, cases=(replace(GOOD, inputs_mutated=True),)), Status.INPUT_MUTATED),
    (replace(SEEN, cases=(replace(GOOD, errors=()),)), Status.WRONG_VALUE),
    (replace(SEEN, cases=(replace(GOOD, bounds=()),)), Status.WRONG_VALUE),
    (replace(SEEN, cases=(GOOD, BAD)), Status.WRONG_VALUE),
    (replace(SEEN, cases=(replace(GOOD, state_differs=True),)), Status.WRONG_VALUE),
    (replace(SEEN, timed=(GOOD,)), Status.PASSED),
    (replace(SEEN, timed=(GOOD, BAD)), Status.WRONG_VALUE),
    (replace(SEEN, timed=(replace(GOOD, inputs_mutated=True),)), Status.INPUT_MUTATED),
    (replace(SEEN, timed=(replace(GOOD, unfinished=True),)), Status.REWARD_HACK),
    (replace(SEEN, rounds=2 * rounds_of(1e-4, 6e-4)), Status.REWARD_HACK),
    (replace(SEEN, rounds=rounds_of(1e-4, 2e-4)), Status.PASSED),
    (replace(SEEN, floor_s=6e-4), Status.REWARD_HACK),
    (replace(SEEN, floor_s=5e-4), Status.PASSED),
    (replace(SEEN, launches_at_least=6e-4), Status.REWARD_HACK),
    (replace(SEEN, launches_at_least=4e-4), Status.PASSED),
    (
        replace(SEEN, rounds=tuple(replace(r, void="drift") for r in SEEN.rounds)),
        Status.SANDBOX_ERROR,
    ),
]


@pytest.mark.parametrize(
    ("seen", "by_clock"),
    [
        (replace(SEEN, floor_s=6e-4), True),
        (replace(SEEN, launches_at_least=6e-4), True),
        (replace(SEEN, rounds=2 * rounds_of(1e-4, 6e-4)), True),
        (replace(SEEN, timed=(replace(GOOD, unfinished=True),)), False),
        (replace(SEEN, cases=(GOOD, BAD)), False),
        (SEEN, False),
    ],
)
def test_an_accusation_by_the_clock_is_told_from_others(seen: Observation, by_clock: bool) -> None:
    assert accused_by_clock(judge(seen, NULL, CONFIG)) is by_clock


def test_an_accusation_that_is_not_repeated_is_a_fault_of_ours_and_no_pass() -> None:
    accused = judge(replace(SEEN, floor_s=6e-4), NULL, CONFIG)
    found = repeated(accused, judge(SEEN, NULL, CONFIG))
    assert found.status is Status.SANDBOX_ERROR
    assert "moving the compulsory bytes takes 600.0 us" in found.detail
    assert found.timing is found.kind is None
    wrong = judge(replace(SEEN, cases=(BAD,)), NULL, CONFIG)
    for again in (accused, wrong):
        assert repeated(accused, again) is again


@pytest.mark.parametrize(("seen", "status"), VERDICTS)
def test_each_observation_has_its_status(seen: Observation, status: Status) -> None:
    before = copy.deepcopy(seen)
    found = judge(seen, NULL, CONFIG)
    assert found.status is status
    assert bool(found.detail) == (status is not Status.PASSED)
    assert "\n" not in found.detail
    assert (found.speedup is not None) == (status is Status.PASSED and bool(seen.rounds))
    assert judge(seen, NULL, CONFIG) == found
    assert seen == before


def test_every_status_that_judging_gives_is_in_the_table() -> None:
    given_elsewhere = {Status.INVALID_REFERENCE}
    assert {status for _, status in VERDICTS} == set(Status) - given_elsewhere


@pytest.mark.parametrize("found", [Errors(misplaced=1), Errors(norm=math.nan), Errors(row=1.0),
                                   Errors(element=math.nan), Errors(norm=math.inf)])  # fmt: skip
def test_an_error_that_is_no_number_is_never_within_a_bound(found: Errors) -> None:
    seen = replace(SEEN, cases=(replace(GOOD, errors=(found,)),))
    assert judge(seen, NULL, CONFIG).status is Status.WRONG_VALUE


def test_a_message_never_decides() -> None:
    words = "CUDA out of memory; SyntaxError: timeout; nvcc compile error"
    failure = Failure("verify", FailureKind.CLAIMED, ("RuntimeError",), words)
    found = judge(replace(SEEN, failure=failure), NULL, CONFIG)
    assert found.status is Status.RUNTIME_ERROR
    assert words in found.detail


def test_faults_of_ours_are_not_scored() -> None:
    assert not judging.fault("t", "c", CONFIG, "disk full", SEEN.environment).status.scored
    assert not judge(failing(FailureKind.FAULT), NULL, CONFIG).status.scored
    assert {s for s in Status if not s.scored} == {
        Status.SANDBOX_ERROR,
        Status.INVALID_REFERENCE,
    }


@pytest.mark.parametrize(
    ("norm", "name"),
    [
        (1e-7, "float32"),
        (3e-4, "tf32"),
        (2e-3, "bfloat16"),
        (4e-2, "float8"),
        (0.5, "looser"),
        (math.inf, "looser"),
    ],
)
def test_precision_is_the_class_of_the_worst_case(norm: float, name: str) -> None:
    worse = replace(GOOD, errors=(Errors(norm=norm),))
    assert layers.precision(replace(SEEN, cases=(GOOD, worse))) == name


@pytest.mark.parametrize(
    ("own", "timed", "name"),
    [(1e-7, 3e-4, "tf32"), (2.8e-4, 4e-4, "float32"), (2.8e-4, 2e-3, "bfloat16")],
    ids=["eager is exact", "eager uses TF32", "beyond eager's TF32"],
)
def test_what_is_timed_in_another_precision_counts_as_that(
    own: float, timed: float, name: str
) -> None:
    worst = replace(GOOD, errors=(Errors(norm=timed),))
    assert layers.precision(replace(SEEN, timed=(worst,), own_error=own)) == name


FULL = Evaluation(
    "task",
    "candidate",
    "config",
    Status.PASSED,
    cases=(CaseResult("given", True, 1e-7, 1e-5), CaseResult("x3", False, None, None, "why")),
    timing=judge(SEEN, NULL, CONFIG).timing,
    baselines=(
        Baseline("compile", 0.5, Interval(2, 1.5, 2.5)),
        Baseline("max_autotune", None, None, "failed"),
    ),
    evidence=(Evidence(Layer.ROOFLINE, Weight.CLEAN, ("fine",)),),
    kind=Kind.KERNEL,
    environment={"gpu": "none"},
    seconds={"build": 0.5},
)


@pytest.mark.parametrize("found", [FULL, *(judge(seen, NULL, CONFIG) for seen, _ in VERDICTS)])
def test_an_evaluation_survives_json(found: Evaluation) -> None:
    text = json.dumps(to_record(found), allow_nan=False)
    assert from_record(Evaluation, json.loads(text)) == found


@pytest.mark.parametrize("record", [{"status": "GREAT"}, {"unknown": 1}, {}])
def test_a_record_that_does_not_fit_is_refused(record: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        from_record(Evaluation, record)


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(0, 1))
def test_any_measured_times_are_judged(batch_s: float, single_s: float, collect: float) -> None:
    rounds = [replace(r, candidate_collect_s=collect) for r in rounds_of(batch_s, single_s)]
    found = judge(replace(SEEN, rounds=tuple(rounds)), NULL, CONFIG)
    assert found.status in (Status.PASSED, Status.REWARD_HACK)
    assert isinstance(found.timing, Timing)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "Error building extension 'k': [1/2] c++ -MMD main.o.d\nmain.cpp: In function 'f':\n"
            "/tmp/a1/b_2/main.cpp:3:5: error: 'foo' was not declared in this scope\n  3 | foo;",
            "build: main.cpp:3:5: error: 'foo' was not declared in this scope",
        ),
        (
            '/tmp/x/kernel.cu(5): error: identifier "foo" is undefined\n\n1 error detected',
            'build: kernel.cu(5): error: identifier "foo" is undefined',
        ),
        (
            "nvcc fatal: nothing\nkernel.cu(2): error #20: undefined",
            "build: CompileException: nvcc fatal: nothing",
        ),
        ("invalid syntax (candidate.py, line 3)", "build: CompileException: invalid syntax"),
    ],
)
def test_a_compile_error_shows_the_compilers_first_error(message, shown):
    failure = Failure("build", FailureKind.CLAIMED, ("CompileException",), message)
    status, detail = judging.failed(failure)
    assert status is Status.COMPILE_ERROR
    assert detail.startswith(shown)


def test_what_a_compiler_within_the_load_stage_said_is_the_build_log():
    failure = Failure("load", FailureKind.CLAIMED, ("NVRTCError",), "k.cu(1): error: no\nmore")
    seen = judge(replace(SEEN, failure=failure), Null(), EvalConfig())
    assert (seen.status, seen.build_log) == (Status.COMPILE_ERROR, "k.cu(1): error: no\nmore")
    other = judge(failing(FailureKind.CLAIMED, "ValueError"), Null(), EvalConfig())
    assert other.build_log == ""


def test_a_lower_bound_that_calls_made_alone_leave_is_explained() -> None:
    short = tuple(
        replace(r, reference_s=r.reference_s / 10, candidate_s=r.candidate_s / 10)
        for r in rounds_of(2e-4, 1e-3)
    )
    told = {}
    for device in ("cpu", "cuda"):
        found = judge(replace(SEEN, rounds=short, environment={"device": device}), NULL, CONFIG)
        assert found.timing is not None
        (told[device],) = [str(e) for e in found.evidence if e.layer is Layer.TIMING]
        assert ("leave a lower bound of" in told[device]) == (device == "cpu")
    assert found.timing.speedup.low > 1
    assert f"batches one of {found.timing.speedup.low:.2f}x" in told["cpu"]
