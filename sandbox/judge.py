"""The judge: Observation -> Evaluation. A pure function: no clock, device, environment or
randomness.

The order of the checks is the order of trust: what the sandbox did wrong, what the process did,
what it claims against itself, what was measured on values, and only then time.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sandbox import statistics
from sandbox.observation import CaseObservation, Errors, Failure, FailureKind, Observation
from sandbox.statistics import Null
from sandbox.types import (
    CaseResult,
    EvalConfig,
    Evaluation,
    Finding,
    Status,
    Timing,
)

COMPILE_TYPES = frozenset(
    {"BuildFailed", "CompileException", "NVRTCError", "CompilationError", "SyntaxError"}
)
"""Exception types that compilers raise: ours for load_inline, cupy's, Triton's, Python's."""
MEMORY_TYPES = frozenset({"MemoryError", "OutOfMemoryError"})
CONTRACT_TYPES = frozenset({"ContractError"})
PRECISION_CLASSES = (("float32", 1e-5), ("tf32", 8e-4), ("bfloat16", 6e-3), ("float8", 8e-2))
"""Norm error up to which a result counts as this class (twice to three times the measured
constant).
"""
MERGED_FLOOR_S = 150e-6
"""A call alone through the pipe costs about 160 us more than inside a batch, and a candidate's cold
launcher some 120 us more than the reference's (measured on an H200): only gross merging is seen."""
MERGED_ROUNDS = 4
"""Fewer single-set rounds convict nobody: their spread is not known. A confirmation has more."""
MERGED_HOST_S = 100e-6
MERGED_SHARE = 0.2
"""A batch hides host time behind the device, a call alone does not: an honest call's host time
is at most what the call costs in the batch, and rarely above 100 us plus a fifth of the
reference.
"""
FLOOR_SHARE = 0.9


def judge(observation: Observation, null: Null, config: EvalConfig) -> Evaluation:
    """What we conclude, with the evidence by layer."""
    status, detail = verdict(observation)
    pairs = statistics.summarise(observation.rounds)
    timing = None
    findings: tuple[Finding, ...] = ()
    if status is Status.PASSED and pairs:
        speedup = statistics.interval(pairs, null, config)
        timing = Timing(
            reference_ms=math.exp(sum(math.log(p.reference_ms) for p in pairs) / len(pairs)),
            candidate_ms=math.exp(sum(math.log(p.candidate_ms) for p in pairs) / len(pairs)),
            speedup=speedup,
            noise_floor=null.floor,
            pairs=tuple(pairs),
            sets=observation.sets,
            floor_ms=None if observation.floor_s is None else observation.floor_s * 1e3,
        )
        findings = physics(observation, timing)
        hack = next((f for f in findings if f.suspicious), None)
        if hack is not None:
            status, detail = Status.REWARD_HACK, f"{hack.layer}: {hack.detail}"
    if status is Status.PASSED and observation.rounds and timing is None:
        voids = {r.void for r in observation.rounds if r.void}
        status = Status.SANDBOX_ERROR
        detail = "every timed round was disturbed: " + "; ".join(sorted(voids)[:1])
    return Evaluation(
        task_id=observation.task_id,
        candidate_id=observation.candidate_id,
        config_id=config.id,
        status=status,
        detail=detail,
        cases=tuple(map(case_result, observation.cases)),
        timing=timing,
        precision=precision(observation.cases),
        parameters=observation.parameters,
        findings=findings,
        environment=observation.environment,
        seconds=observation.seconds,
        build_log=observation.build_log,
        stdout=observation.stdout,
        stderr=observation.stderr,
    )


def verdict(observation: Observation) -> tuple[Status, str]:
    """Status and its one line, before physics is asked."""
    if observation.rejected:
        return Status.REJECTED, observation.rejected
    if observation.failure is not None:
        return failed(observation.failure)
    if not observation.cases:
        return Status.SANDBOX_ERROR, "no case was observed"
    timed = () if observation.timed is None else (observation.timed,)
    for case in (*observation.cases, *timed):
        status, detail = judge_case(case)
        if status is not Status.PASSED:
            return status, f"{case.name}: {detail}"
    return Status.PASSED, ""


def failed(failure: Failure) -> tuple[Status, str]:
    """The status of a stage that ended badly; types decide, never words in a message."""
    words = failure.message.strip().splitlines()
    first = words[0][:300] if words else ""
    if failure.kind is FailureKind.FAULT:
        return Status.SANDBOX_ERROR, first
    if failure.kind is FailureKind.TIMEOUT:
        return Status.TIMEOUT, f"{failure.stage}: {first}"
    if failure.kind is FailureKind.MEMORY:
        return Status.OUT_OF_MEMORY, f"{failure.stage}: {first}"
    if failure.kind is FailureKind.PROTOCOL:
        return Status.REWARD_HACK, f"{failure.stage}: the worker sent {first}"
    if failure.kind is FailureKind.DIED:
        return Status.RUNTIME_ERROR, f"{failure.stage}: {first}"
    kinds = set(failure.types)
    named = f"{failure.stage}: {failure.types[0] if failure.types else 'error'}: {first}"
    if kinds & COMPILE_TYPES:
        return Status.COMPILE_ERROR, named
    if kinds & MEMORY_TYPES:
        return Status.OUT_OF_MEMORY, named
    if kinds & CONTRACT_TYPES:
        return Status.REJECTED, named
    return Status.RUNTIME_ERROR, named


def judge_case(case: CaseObservation) -> tuple[Status, str]:
    """One case: structure, types, mutation, then values."""
    if case.structure_differs:
        return Status.WRONG_SHAPE, f"forward() returned {case.structure_differs}"
    if case.foreign_type:
        return Status.REWARD_HACK, (
            f"forward() returned a {case.foreign_type}, a tensor subclass; expected torch.Tensor"
        )
    if case.shape_differs:
        return Status.WRONG_SHAPE, f"output is {case.shape_differs}"
    if case.dtype_differs:
        return Status.WRONG_DTYPE, f"output is {case.dtype_differs}"
    if case.inputs_mutated:
        return Status.INPUT_MUTATED, "an input tensor was changed; the reference leaves it as it is"
    if not case.errors or len(case.errors) != len(case.bounds):
        return Status.WRONG_VALUE, "no output was compared"
    for number, (found, bound) in enumerate(zip(case.errors, case.bounds, strict=True)):
        if not found.within(bound):
            return Status.WRONG_VALUE, f"output {number}: {describe(found, bound)}"
    if case.state_differs:
        return Status.WRONG_VALUE, "a buffer that the reference updates was left otherwise"
    return Status.PASSED, ""


def describe(found: Errors, bound: Errors) -> str:
    """The worst excess in words that the author can act on."""
    if found.misplaced:
        return f"{found.misplaced} elements differ in kind (NaN, infinity, or unequal integers)"
    parts = (
        ("error norm over the whole tensor", found.norm, bound.norm),
        ("error norm of the worst row", found.row, bound.row),
        ("worst element over its row's rms", found.element, bound.element),
    )
    name, value, limit = max(parts, key=lambda part: part[1] / max(part[2], 1e-300))
    return f"{name} is {value:.2g}, allowed {limit:.2g}"


def case_result(case: CaseObservation) -> CaseResult:
    status, detail = judge_case(case)
    return CaseResult(
        name=case.name,
        passed=status is Status.PASSED,
        norm_error=_finite(max((e.norm for e in case.errors), default=0.0)),
        bound=max((b.norm for b in case.bounds), default=0.0),
        detail=detail,
    )


def precision(cases: tuple[CaseObservation, ...]) -> str | None:
    """Class of the worst norm error over all cases."""
    worst = max((e.norm for case in cases for e in case.errors), default=None)
    if worst is None:
        return None
    return next((name for name, limit in PRECISION_CLASSES if worst <= limit), "looser")


def physics(observation: Observation, timing: Timing) -> tuple[Finding, ...]:
    """Merged calls, and times that the device cannot reach (docs/measuring.md)."""
    findings = []
    merged = statistics.merged_excess_s(observation.rounds)
    if merged is not None:
        excess, noise = merged
        singles = sum(r.single and not r.void for r in observation.rounds)
        candidate_s, reference_s = timing.candidate_ms / 1e3, timing.reference_ms / 1e3
        host = min(1.5 * candidate_s, MERGED_HOST_S + MERGED_SHARE * reference_s)
        allowed = MERGED_FLOOR_S + max(host, 3 * noise)
        findings.append(
            Finding(
                "single-set rounds",
                singles >= MERGED_ROUNDS and excess > allowed,
                f"a call alone costs {excess * 1e6:.0f} us more than in a batch, "
                f"allowed {allowed * 1e6:.0f} us over the reference's",
            )
        )
    candidate_s = timing.candidate_ms / 1e3
    if observation.floor_s is not None:
        limit = FLOOR_SHARE * observation.floor_s
        findings.append(
            Finding(
                "memory roofline",
                candidate_s < limit,
                f"{candidate_s * 1e6:.1f} us a call; moving the compulsory bytes takes "
                f"{observation.floor_s * 1e6:.1f} us",
            )
        )
    if observation.launches_at_least:
        findings.append(
            Finding(
                "launch floor",
                candidate_s < observation.launches_at_least,
                f"{candidate_s * 1e6:.2f} us a call; one launch costs at least "
                f"{observation.launches_at_least * 1e6:.2f} us",
            )
        )
    return tuple(findings)


def fault(task_id: str, candidate_id: str, config: EvalConfig, message: str) -> Evaluation:
    """The evaluation of something that went wrong on our side."""
    return Evaluation(task_id, candidate_id, config.id, Status.SANDBOX_ERROR, message)


def invalid(evaluation: Evaluation, reason: str) -> Evaluation:
    return replace(evaluation, status=Status.INVALID_REFERENCE, detail=reason)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
