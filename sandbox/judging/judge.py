"""The judge: Observation -> Evaluation. A pure function: no clock, device, environment or
randomness.

The order of the checks is the order of trust: what the sandbox did wrong, what the process did,
what it claims against itself, what was measured on values, and only then time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from sandbox.figures import Timing
from sandbox.judging import layers, merging, statistics
from sandbox.judging.statistics import Null
from sandbox.observation import CaseObservation, Errors, Failure, FailureKind, Observation
from sandbox.types import CaseResult, EvalConfig, Evaluation, Status

COMPILE_TYPES = frozenset(
    {"BuildFailed", "CompileException", "NVRTCError", "CompilationError", "SyntaxError"}
)
"""Exception types that compilers raise: ours for load_inline, cupy's, Triton's, Python's."""
COMPILER_ERROR = re.compile(r"\b(?:fatal )?error(?: [A-Z]?\d+)?: ", re.IGNORECASE)
"""As gcc, nvcc, NVRTC and Triton begin one; it chooses what is shown and never a verdict."""
SCRATCH_FOLDER = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+")
SHOWN_CHARACTERS = 300
MEMORY_TYPES = frozenset({"MemoryError", "OutOfMemoryError"})
CONTRACT_TYPES = frozenset({"ContractError"})
ACCUSED_ONCE = "accused once, and not when it was judged again"


def judge(observation: Observation, null: Null, config: EvalConfig) -> Evaluation:
    """What we conclude, with the evidence by layer."""
    status, detail = verdict(observation)
    null = null.of_batches(observation.sets, observation.planned_sets)
    evidence = layers.before_timing(observation, sound=status is Status.PASSED)
    pairs = statistics.summarise(observation.rounds)
    timing = None
    if status is Status.PASSED and pairs:
        batched = statistics.interval(pairs, null, config)
        device = observation.environment.get("device", "")
        speedup = merging.lower_bound(observation.rounds, batched, device)
        timing = Timing(
            reference_ms=math.exp(sum(math.log(p.reference_ms) for p in pairs) / len(pairs)),
            candidate_ms=math.exp(sum(math.log(p.candidate_ms) for p in pairs) / len(pairs)),
            speedup=speedup,
            noise_floor=null.floor,
            pairs=tuple(pairs),
            sets=observation.sets,
            floor_ms=None if observation.floor_s is None else observation.floor_s * 1e3,
        )
        evidence = (*evidence, *layers.physics(observation, timing, batched))
    hack = layers.proof(evidence) if status is Status.PASSED else None
    if hack is not None:
        status, detail = Status.REWARD_HACK, str(hack)
    if status is Status.PASSED and observation.rounds and timing is None:
        voids = {r.void for r in observation.rounds if r.void}
        status = Status.SANDBOX_ERROR
        detail = "every timed round was disturbed: " + "; ".join(sorted(voids)[:1])
    peak_bytes, reference_peak_bytes = layers.peaks(observation)
    return Evaluation(
        task_id=observation.task_id,
        candidate_id=observation.candidate_id,
        config_id=config.id,
        status=status,
        detail=detail,
        cases=tuple(map(case_result, observation.cases)),
        timing=timing,
        precision=layers.precision(observation),
        parameters=observation.parameters,
        evidence=evidence,
        kind=layers.kind(observation) if status is Status.PASSED else None,
        own_share=layers.own_share(observation),
        peak_bytes=peak_bytes,
        reference_peak_bytes=reference_peak_bytes,
        environment=observation.environment,
        seconds=observation.seconds,
        build_log=observation.build_log or compiler_words(status, observation.failure),
        stdout=observation.stdout,
        stderr=observation.stderr,
    )


def verdict(observation: Observation) -> tuple[Status, str]:
    """Status and its one line, before runtime facts and physics are asked."""
    if observation.source.refused:
        return Status.REJECTED, observation.source.refused
    if observation.rejected:
        return Status.REJECTED, observation.rejected
    if observation.failure is not None:
        return failed(observation.failure)
    if not observation.cases:
        return Status.SANDBOX_ERROR, "no case was observed"
    for case in (*observation.cases, *observation.timed):
        status, detail = judge_case(case)
        if status is not Status.PASSED:
            return status, f"{case.name}: {detail}"
    return Status.PASSED, ""


def failed(failure: Failure) -> tuple[Status, str]:
    """The status of a stage that ended badly; types decide, never words in a message."""
    words = failure.message.strip().splitlines()
    first = words[0][:SHOWN_CHARACTERS] if words else ""
    if failure.kind is FailureKind.FAULT:
        return Status.SANDBOX_ERROR, first
    if failure.kind is FailureKind.TIMEOUT:
        return Status.TIMEOUT, f"{failure.stage}: {first}"
    if failure.kind is FailureKind.MEMORY:
        return Status.OUT_OF_MEMORY, f"{failure.stage}: {first}"
    if failure.kind is FailureKind.PROTOCOL:
        return Status.REWARD_HACK, f"{failure.stage}: the worker sent {first}"
    if failure.kind is FailureKind.AWAKE:
        return Status.REWARD_HACK, f"{failure.stage}: {first}"
    if failure.kind is FailureKind.DIED:
        return Status.RUNTIME_ERROR, f"{failure.stage}: {first}"
    kinds = set(failure.types)
    named = f"{failure.stage}: {failure.types[0] if failure.types else 'error'}: {first}"
    if kinds & COMPILE_TYPES:
        error = next((w.strip() for w in words if COMPILER_ERROR.search(w)), "")
        error = SCRATCH_FOLDER.sub("", error)
        # Of a build only the compiler's own words help: its command line is ours.
        shown = f"{failure.stage}: {error[:SHOWN_CHARACTERS]}" if error else named
        return Status.COMPILE_ERROR, shown
    if kinds & MEMORY_TYPES:
        return Status.OUT_OF_MEMORY, named
    if kinds & CONTRACT_TYPES:
        return Status.REJECTED, named
    return Status.RUNTIME_ERROR, named


def compiler_words(status: Status, failure: Failure | None) -> str:
    """What a compiler said that ran within a later stage, as NVRTC's and Triton's do."""
    return failure.message if status is Status.COMPILE_ERROR and failure is not None else ""


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
    if case.unfinished:
        return Status.REWARD_HACK, (
            "a call was said to be done while the GPU still wrote its inputs: device-wide "
            "synchronisation does not wait in this process"
        )
    if case.inputs_mutated:
        return Status.INPUT_MUTATED, "an input tensor was changed; the reference leaves it as it is"
    if not case.errors or len(case.errors) != len(case.bounds):
        return Status.WRONG_VALUE, "no output was compared"
    for number, (found, bound) in enumerate(zip(case.errors, case.bounds, strict=True)):
        if not found.within(bound):
            where = case.mismatches[number] if number < len(case.mismatches) else None
            tail = "" if where is None else f"; {where}"
            return Status.WRONG_VALUE, f"output {number}: {describe(found, bound)}{tail}"
    if case.update_differs:
        return Status.WRONG_VALUE, "an input that the reference writes to was left otherwise"
    if case.stale:
        return Status.WRONG_VALUE, "an output changed after later calls: allocate each one afresh"
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


def fault(
    task_id: str,
    candidate_id: str,
    config: EvalConfig,
    message: str,
    environment: Mapping[str, str],
    *,
    no_room: bool = False,
) -> Evaluation:
    """The evaluation of something that went wrong on our side, on the device of `environment`."""
    return Evaluation(
        task_id,
        candidate_id,
        config.id,
        Status.SANDBOX_ERROR,
        message,
        environment=environment,
        no_room=no_room,
    )


def accused_by_clock(evaluation: Evaluation) -> bool:
    """Whether it is a hack by what was timed, which a disturbance may look like for once."""
    proof = layers.proof(evaluation.evidence)
    return (
        evaluation.status is Status.REWARD_HACK
        and proof is not None
        and proof.layer in layers.BY_CLOCK
    )


def beyond_device(evaluation: Evaluation) -> bool:
    """Whether it is a hack by what the device was measured to do, which may be less than it can."""
    proof = layers.proof(evaluation.evidence)
    return accused_by_clock(evaluation) and proof is not None and proof.layer in layers.BY_FACTS


def repeated(accusation: Evaluation, again: Evaluation) -> Evaluation:
    """What both come to: an accusation by the clock that fresh processes do not repeat is a fault
    of ours, and no pass either, which would have the better of two for who cheats now and then.
    """
    if not again.passed:
        return again
    words = f"{ACCUSED_ONCE}: {accusation.detail}"
    fault = replace(again, status=Status.SANDBOX_ERROR, detail=words, kind=None)
    return replace(fault, timing=None, baselines=())


def invalid(evaluation: Evaluation, reason: str) -> Evaluation:
    return replace(evaluation, status=Status.INVALID_REFERENCE, detail=reason)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
