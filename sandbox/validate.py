"""Measures what sandbox/admission.py judges: one task, every shape, on one device.

The cases are those of a preparation, made by the same code with the same bounds; a task that
preparation refuses for another reason (it fails, it is stochastic, it does not fit) is INVALID with
that reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from sandbox.admission import (
    TOLERANCES,
    Admission,
    Headroom,
    Level,
    Memory,
    OutputRange,
    Remark,
    ShapeFigures,
    conclude,
    remarks_on,
)
from sandbox.checking import compare, nulls
from sandbox.checking.nulls import NullCandidate
from sandbox.checking.pool import Case, Pool, build_pool
from sandbox.checking.sensitivity import Variation
from sandbox.errors import InvalidReference
from sandbox.figures import Interval
from sandbox.judging.invalid import reference_failed
from sandbox.machine.device import DeviceFacts, free_bytes
from sandbox.machine.handle import WorkerFailed
from sandbox.machine.trees import Layout
from sandbox.observation import Errors
from sandbox.prepare import Preparer
from sandbox.subjects.plan import Plan, plan
from sandbox.subjects.signature import Opening, Signature
from sandbox.subjects.stand import Stand
from sandbox.subjects.subject import Subject
from sandbox.types import EvalConfig, Task

MOST_PARAMETERS = 256
"""Changed one by one; of more, every n-th. A DenseNet has 600, at a tenth of a second each."""


def validate(
    stand: Stand, preparer: Preparer, task: Task, config: EvalConfig, *, compiled: bool = False
) -> Admission:
    """Every check of one task; `compiled` times torch.compile as well, which takes far longer.

    Raises SandboxFault for a fault of ours, never for the task's.
    """
    began = time.monotonic()
    found: list[ShapeFigures] = []
    remarks: list[Remark] = []
    examiner = _Examiner(stand, preparer, task, config, compiled)
    try:
        for shape in range(len(task.shapes)):
            found.append(examiner.examine(shape))
            remarks += remarks_on(found[-1])
    except WorkerFailed as failed:
        error = reference_failed(task, failed)
        if not isinstance(error, InvalidReference):
            raise error from failed
        remarks.append(Remark("reference", Level.INVALID, str(error)))
    except InvalidReference as error:
        remarks.append(Remark("reference", Level.INVALID, f"{task.id}: {error}"))
    finally:
        examiner.close()
    verdict, reason = conclude(remarks)
    return Admission(
        task.id,
        task.hash,
        task.device,
        config.id,
        verdict,
        reason,
        tuple(remarks),
        tuple(found),
        preparer.facts.environment,
        time.monotonic() - began,
    )


@dataclass(frozen=True)
class _Seen:
    """What all cases tell, before those that only serve comparison are dropped."""

    nulls: tuple[NullCandidate, ...]
    loose: Mapping[str, Sequence[str]]
    ranges: tuple[OutputRange, ...]


class _Examiner:
    """One task's reference worker, shape after shape."""

    def __init__(
        self, stand: Stand, preparer: Preparer, task: Task, config: EvalConfig, compiled: bool
    ) -> None:
        self.stand = stand
        self.preparer = preparer
        self.task = task
        self.config = config
        self.compiled = compiled
        self.subject: Subject | None = None

    def close(self) -> None:
        if self.subject is not None:
            self.subject.close()

    def examine(self, shape: int) -> ShapeFigures:
        """Of the task's shape with this index; raises InvalidReference as `build_pool` does."""
        subject, signature = self.open(shape)
        seen: list[_Seen] = []
        free = free_bytes(self.task.device)
        pool = build_pool(
            subject,
            signature,
            self.config,
            free,
            admit=lambda cases, signature: seen.append(see(cases, signature)),
        )
        scheme = plan(signature, self.config, free)
        variation = Variation(subject, pool, self.config)
        repeat = variation.repeat()
        weight = subject.request("weigh", self.config.run_timeout_s)
        inputs = {i: variation.ignores(("input", i)) for i in range(len(signature.inputs))}
        names = weight["parameters"]
        step = math.ceil(len(names) / MOST_PARAMETERS) or 1
        parameters = {
            name: variation.ignores(("parameter", i))
            for i, name in enumerate(names)
            if i % step == 0
        }
        variation.close()
        return ShapeFigures(
            shape=self.task.shapes[shape].name,
            oracle=pool.oracle,
            bound_norm=max((b.norm for b in pool.cases[0].bounds), default=0.0),
            aliases=signature.aliases,
            nulls=seen[0].nulls,
            loose=seen[0].loose,
            ranges=seen[0].ranges,
            repeat_norm=_finite(max(e.norm for e in repeat)),
            repeats=_within(repeat, pool),
            inputs=len(signature.inputs),
            ignored_inputs=tuple(i for i, ignored in inputs.items() if ignored),
            fixed_inputs=tuple(i for i, ignored in inputs.items() if ignored is None),
            parameters=len(names),
            parameters_changed=sum(ignored is not None for ignored in parameters.values()),
            ignored_parameters=tuple(n for n, ignored in parameters.items() if ignored),
            memory=Memory(
                inputs=signature.input_bytes,
                outputs=signature.output_bytes,
                state=Layout(tuple(leaf for _, leaf in signature.state), 1).stride,
                free=free,
                sets=scheme.sets,
                peak=weight["peak_bytes"],
            ),
            headroom=Headroom(
                latency_ms=signature.latency_s * 1e3,
                flops=weight["flops"],
                floor_ms=self.floor_ms(signature, scheme, weight["flops"]),
                compiled=self.against_compile(shape, signature, scheme),
            ),
        )

    def open(self, shape: int) -> tuple[Subject, Signature]:
        opening = Opening(shape)
        if self.subject is None:
            self.subject, signature = self.stand.reference(self.task, self.config, opening)
        else:
            self.subject.release()
            signature = self.stand.open_reference(self.subject, opening)
        return self.subject, signature

    def floor_ms(self, signature: Signature, scheme: Plan, flops: int) -> float | None:
        """The roofline's: bytes that cannot be avoided, and operations as torch counts them."""
        facts: DeviceFacts = self.preparer.facts
        floors = [flops / self.matmul_flops(facts)] if flops else []
        moved = sum(leaf.bytes for leaf in (*signature.inputs, *signature.outputs))
        if moved * scheme.sets > 8 * facts.cache_bytes:
            floors.append(facts.floor_s(moved))
        return 1e3 * max(floors) if floors else None

    def matmul_flops(self, facts: DeviceFacts) -> float:
        """Of the fastest type that the protocol allows the task."""
        names = [self.task.dtype]
        if self.task.dtype == "float32" and self.config.tf32 and not self.task.exact_float32:
            names.append("tf32")
        known = [facts.matmul_flops[name] for name in names if name in facts.matmul_flops]
        return max(known, default=max(facts.matmul_flops.values()))

    def against_compile(self, shape: int, signature: Signature, scheme: Plan) -> Interval | None:
        """torch.compile's speedup at the timed shape, by null experiment and process pairs."""
        if not self.compiled or shape:
            return None
        self.close()
        self.subject = None
        kept, stage = self.preparer.baselines, self.preparer.stage
        _, baselines = kept.measured(
            self.task, self.config, signature, scheme, stage, self.preparer.stand.retire
        )
        return next((b.speedup for b in baselines if b.name == "compile"), None)


def see(cases: Sequence[Case], signature: Signature) -> _Seen:
    """Null candidates by both rules, and the outputs' ranges."""
    plain = [case for case in cases if case.scale == 1.0]
    loose = {
        f"{tolerance:g}": tuple(nulls.passing(plain, signature, nulls.by_tolerance(tolerance)))
        for tolerance in TOLERANCES
    }
    fresh = plain[1] if len(plain) > 1 and signature.inputs else None
    ranges = tuple(
        output_range(
            leaf.dtype,
            truth,
            None if fresh is None else fresh.truth[number],
            cases[0].bounds[number],
        )
        for number, (leaf, truth) in enumerate(zip(signature.outputs, cases[0].truth, strict=True))
        if truth.numel()
    )
    return _Seen(nulls.passing(cases, signature), loose, ranges)


def output_range(
    dtype: str, truth: torch.Tensor, fresh: torch.Tensor | None, bound: Errors
) -> OutputRange:
    """Of one output leaf that is not empty; `fresh` is the same leaf for another input set."""
    if truth.is_floating_point() and not bool(truth.isfinite().all()):
        # What is infinite by design counts as zero.
        truth = truth.nan_to_num(0.0, 0.0, 0.0)
        fresh = None if fresh is None else fresh.nan_to_num(0.0, 0.0, 0.0)
    count, typed = truth.numel(), getattr(torch, dtype)
    low, high = truth.min().to(typed), truth.max().to(typed)
    middle = sum(float(part.double().sum()) for (part,) in compare.pieces(truth)) / count
    spread = between = 0.0
    at_end = 0
    for part, other in compare.pieces(truth, truth if fresh is None else fresh):
        values = part.double()
        spread += float((values - middle).square().sum())
        between += float((values - other.double()).square().sum())
        rounded = part.to(typed)
        at_end += int(((rounded == low) | (rounded == high)).sum())
    axes = (axis for axis, size in enumerate(truth.shape) if size > 1)
    return OutputRange(
        dtype=dtype,
        max_abs=max(abs(float(truth.min())), abs(float(truth.max()))),
        std=math.sqrt(spread / count),
        fresh_std=None if fresh is None else math.sqrt(between / count / 2),
        constant_axes=tuple(axis for axis in axes if _repeats(truth, axis, bound)),
        saturated=at_end / count,
    )


def _repeats(truth: torch.Tensor, axis: int, bound: Errors) -> bool:
    """Whether all along this axis is the same, in every piece of the tensor."""
    exact = not truth.is_floating_point()
    first = truth.narrow(axis, 0, 1)
    mean = first if exact else truth.mean(axis, keepdim=True, dtype=torch.float64)
    along = max((a for a in range(truth.ndim) if a != axis), key=truth.size, default=None)
    if along is None:
        return compare.errors(mean.expand_as(truth), truth).within(bound)
    step = max(1, compare.CHUNK_ELEMENTS // (truth.numel() // truth.size(along)))
    return all(
        compare.errors(some.expand_as(expected), expected).within(bound)
        for some, expected in zip(mean.split(step, along), truth.split(step, along), strict=True)
    )


def _within(repeat: Sequence[Errors], pool: Pool) -> bool:
    return all(e.within(b) for e, b in zip(repeat, pool.cases[0].bounds, strict=True))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
