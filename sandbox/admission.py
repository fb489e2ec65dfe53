"""Whether a problem can be scored at all: measured figures -> remarks -> a verdict. Pure functions.

A problem is *degenerate* where a candidate passes that does not do its work: a null candidate
(sandbox/checking/nulls.py), or one that ignores an input. Preparation refuses those by the same
rules, so that they are never scored. What is merely *noted* is scored: a speedup there may come
from leaving out work that makes no difference (a parameter without influence, an axis along which
the output repeats), or could not be had elsewhere. Whether a problem is worth solving is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sandbox.checking.nulls import NullCandidate, why_degenerate
from sandbox.checking.sensitivity import ignored_input
from sandbox.figures import Interval

SCHEMA_VERSION = 1
"""Of an Admission's record."""
TOLERANCES = (1e-2, 1e-4)
"""KernelBench's elementwise ones: version 0.1 and reduced precision; float32 today."""
SMALL = 1e-2
"""METR's range: outputs that all lie this near to zero pass as zeros at the first tolerance."""
SATURATED_SHARE = 0.99
"""Of elements at an output's least or greatest value: a lookup, hardly a function."""
NO_HEADROOM = 1.1
"""Times the roofline floor, which is itself a few per cent out of reach."""


class Level(StrEnum):
    """From best to worst."""

    SOUND = "sound"
    NOTED = "noted"
    DEGENERATE = "degenerate"
    INVALID = "invalid"

    @property
    def scored(self) -> bool:
        return self in (Level.SOUND, Level.NOTED)


@dataclass(frozen=True)
class Remark:
    """One thing found; SOUND ones are not kept."""

    check: str
    level: Level
    detail: str


@dataclass(frozen=True)
class OutputRange:
    """One output leaf at the inputs' own scale; integers count as numbers."""

    dtype: str
    max_abs: float
    std: float
    """Over the elements of one output."""
    fresh_std: float | None
    """Of an element between two input sets, rms over elements."""
    constant_axes: tuple[int, ...]
    """Along which it repeats, within its bound."""
    saturated: float
    """Share of elements equal to the least or the greatest, after rounding to its own type."""


@dataclass(frozen=True)
class Memory:
    """Bytes: of one input set, of its outputs, of parameters and buffers, and at hand."""

    inputs: int
    outputs: int
    state: int
    free: int
    sets: int
    """Input sets that a timed batch holds."""
    peak: int | None = None
    """Of torch's allocations during one call, device only."""


@dataclass(frozen=True)
class Headroom:
    """What is left to gain, roughly; a planning figure, not a measurement of a speedup."""

    latency_ms: float
    flops: int
    """Of the operations that torch counts: matmul, convolution, attention."""
    floor_ms: float | None
    """The larger of compulsory bytes over bandwidth, where caches cannot hold the batch, and
    counted operations over matmul throughput; None where there is neither."""
    compiled: Interval | None = None
    """torch.compile against eager by the full protocol, where that was asked for."""

    @property
    def times(self) -> float | None:
        return None if not self.floor_ms else self.latency_ms / self.floor_ms


@dataclass(frozen=True)
class ShapeFigures:
    """Everything measured of a task at one shape."""

    shape: str
    oracle: str
    bound_norm: float
    """The largest norm error that a candidate may have."""
    aliases: bool
    nulls: tuple[NullCandidate, ...]
    """That pass by our bounds, over all cases."""
    loose: Mapping[str, Sequence[str]]
    """That pass at KernelBench's tolerances on inputs as given, by tolerance."""
    ranges: tuple[OutputRange, ...]
    repeat_norm: float | None
    """Between two calls on equal inputs, largest over outputs; None where the first was zero."""
    repeats: bool
    """That difference is within the bounds."""
    inputs: int
    ignored_inputs: tuple[int, ...]
    fixed_inputs: tuple[int, ...]
    """Whose values never change and cannot be changed validly."""
    parameters: int
    parameters_changed: int
    ignored_parameters: tuple[str, ...]
    memory: Memory
    headroom: Headroom


@dataclass(frozen=True)
class Admission:
    """What `warpsmith tasks validate` says of one task."""

    task_id: str
    task_hash: str
    device: str
    config_id: str
    verdict: Level
    reason: str = ""
    """The first remark of the verdict's level."""
    remarks: tuple[Remark, ...] = ()
    figures: tuple[ShapeFigures, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    schema_version: int = SCHEMA_VERSION


def conclude(remarks: Sequence[Remark]) -> tuple[Level, str]:
    """The worst level and its first reason."""
    levels = list(Level)
    worst = max((r.level for r in remarks), key=levels.index, default=Level.SOUND)
    return worst, next((r.detail for r in remarks if r.level is worst), "")


def remarks_on(found: ShapeFigures) -> list[Remark]:
    """Everything to be said of one shape."""
    said = [*_nulls(found), *_sensitivity(found), *_range(found), *_cost(found)]
    return [Remark(r.check, r.level, f"{found.shape}: {r.detail}") for r in said]


def _nulls(found: ShapeFigures) -> list[Remark]:
    said = []
    for null in found.nulls:
        reason = why_degenerate(null, aliases=found.aliases)
        if reason:
            said.append(Remark("null candidate", Level.DEGENERATE, reason))
    if NullCandidate.ECHO in found.nulls and not found.aliases:
        said.append(Remark("null candidate", Level.NOTED, "the task is a copy of an input"))
    if NullCandidate.STEP_DOWN in found.nulls:
        words = f"{NullCandidate.STEP_DOWN} passes (norm bound {found.bound_norm:.1g})"
        said.append(Remark("precision", Level.NOTED, words))
    for tolerance, nulls in found.loose.items():
        passing = [n for n in nulls if n not in (NullCandidate.STEP_DOWN, NullCandidate.ECHO)]
        ours = set(found.nulls)
        only_there = [n for n in passing if n not in ours]
        if only_there:
            words = f"at KernelBench's tolerance {tolerance} {', '.join(only_there)} would pass"
            said.append(Remark("elementwise tolerance", Level.NOTED, words))
    return said


def _sensitivity(found: ShapeFigures) -> list[Remark]:
    said = []
    if not found.repeats:
        apart = "" if found.repeat_norm is None else f" {found.repeat_norm:.2g} apart"
        words = f"equal inputs give outputs{apart}, beyond the bound"
        said.append(Remark("determinism", Level.DEGENERATE, words))
    for index in found.ignored_inputs:
        said.append(Remark("inputs", Level.DEGENERATE, ignored_input(index)))
    for index in found.fixed_inputs:
        words = f"input {index} never changes: its influence was not tested"
        said.append(Remark("inputs", Level.NOTED, words))
    if found.ignored_parameters:
        names = ", ".join(found.ignored_parameters[:4])
        more = len(found.ignored_parameters) - 4
        words = f"no influence of parameter {names}" + (f" and {more} more" if more > 0 else "")
        said.append(Remark("parameters", Level.NOTED, words))
    return said


def _range(found: ShapeFigures) -> list[Remark]:
    said = []
    for number, leaf in enumerate(found.ranges):
        if leaf.max_abs <= SMALL:
            words = f"output {number} lies within {leaf.max_abs:.2g} of zero"
            said.append(Remark("range", Level.NOTED, words))
        if leaf.constant_axes:
            axes = ", ".join(map(str, leaf.constant_axes))
            words = f"output {number} repeats along axis {axes}"
            said.append(Remark("range", Level.NOTED, words))
        if leaf.saturated >= SATURATED_SHARE and "float" in leaf.dtype:
            words = f"output {number} is saturated: {leaf.saturated:.1%} at its least or greatest"
            said.append(Remark("range", Level.NOTED, words))
    return said


def _cost(found: ShapeFigures) -> list[Remark]:
    said = []
    if found.memory.sets == 1:
        words = "one input set fills the memory at hand: calls are timed one by one"
        said.append(Remark("memory", Level.NOTED, words))
    if found.parameters_changed < found.parameters:
        words = f"{found.parameters_changed} of {found.parameters} parameters were changed"
        said.append(Remark("parameters", Level.NOTED, words))
    times = found.headroom.times
    if times is not None and times < NO_HEADROOM:
        words = f"{times:.2f} times its roofline floor: no headroom"
        said.append(Remark("headroom", Level.NOTED, words))
    return said
