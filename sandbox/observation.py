"""What one evaluation saw: what the supervisor *measured* and what a worker *claims*, never mixed.

`judge` turns an Observation into an Evaluation; it reads claims only where they can hurt the
claimant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sandbox.static.scan import Scan
from sandbox.types import Language


class FailureKind(StrEnum):
    """How a stage ended before its reply."""

    CLAIMED = "claimed"
    """The worker says an exception was raised (its types and words are claims)."""
    DIED = "died"
    """The worker's process ended: measured by end of file and its wait status."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    """Its process tree held more memory than allowed, or left none to others."""
    PROTOCOL = "protocol"
    """It sent something that is no reply of our harness."""
    AWAKE = "awake"
    """It went on while it was stopped, so that it could not disturb what is timed."""
    FAULT = "fault"
    """Ours: the reference's worker, the zygote, the device."""


@dataclass(frozen=True)
class Failure:
    stage: str
    """build, load, verify or time."""
    kind: FailureKind
    types: tuple[str, ...] = ()
    """Claimed exception type and its bases, most specific first."""
    message: str = ""
    trace: str = ""


@dataclass(frozen=True)
class Errors:
    """Distances of one output leaf from the truth, each relative and unitless; 0 is exact."""

    norm: float = 0.0
    """||out - truth|| / ||truth||."""
    row: float = 0.0
    """The largest row's error norm over that row's (or the tensor's typical) norm."""
    element: float = 0.0
    """The largest elementwise error over its row's rms: catches a dropped tail."""
    misplaced: int = 0
    """Elements not finite where the truth is, or the reverse; unequal integers that are no tie."""

    def within(self, bound: Errors) -> bool:
        return (
            self.misplaced == 0
            and self.norm <= bound.norm
            and self.row <= bound.row
            and self.element <= bound.element
        )

    def worst(self, other: Errors) -> Errors:
        return Errors(
            max(self.norm, other.norm),
            max(self.row, other.row),
            max(self.element, other.element),
            max(self.misplaced, other.misplaced),
        )

    def times(self, factor: float) -> Errors:
        """Of the distances, for a bound."""
        return Errors(factor * self.norm, factor * self.row, factor * self.element)


@dataclass(frozen=True)
class Mismatch:
    """Where and how an output is wrong (sandbox/checking/mismatch.py): places and patterns, no
    values.
    """

    shape: tuple[int, ...]
    share: float
    """Of the elements that are beyond the bound."""
    count: int
    first: tuple[int, ...]
    """Coordinates of the first of them, row-major."""
    hints: tuple[str, ...] = ()
    """What they have in common: a tail, a transposition, a factor, lost digits."""

    def __str__(self) -> str:
        total = round(self.count / self.share)
        where = f"the first at {list(self.first)} of {list(self.shape)}" if self.shape else "scalar"
        share = f"{100 * self.share:.3g} % of the elements are wrong ({self.count} of {total})"
        return "; ".join([f"{share}, {where}", *self.hints])


@dataclass(frozen=True)
class CaseObservation:
    """One correctness case on the candidate."""

    name: str
    errors: tuple[Errors, ...] = ()
    """Per output leaf, measured against the oracle."""
    bounds: tuple[Errors, ...] = ()
    mismatches: tuple[Mismatch | None, ...] = ()
    """Per output leaf that is beyond its bound, where that was looked at."""
    inputs_mutated: bool = False
    update_differs: bool = False
    """Inputs that the reference writes to were left otherwise."""
    unfinished: bool = False
    """A call was said to be done before a GPU had even made out its inputs."""
    structure_differs: str = ""
    """Claimed: how the returned structure differs from the reference's; empty if it does not."""
    shape_differs: str = ""
    layout_differs: str = ""
    """Claimed: in what other layout an output is, where the protocol allows that."""
    dtype_differs: str = ""
    foreign_type: str = ""
    """Claimed: a returned tensor subclass."""
    state_differs: bool = False
    stale: bool = False
    """An output was something else after later calls."""
    sharing: tuple[str, ...] = ()
    """Claimed: how outputs share memory with each other, inputs or parameters."""

    @property
    def within(self) -> bool:
        """Whether its errors are what they may be."""
        return all(e.within(b) for e, b in zip(self.errors, self.bounds, strict=True))

    def worst(self, other: CaseObservation) -> CaseObservation:
        """The worse of two rounds, field by field, under the bounds of this one."""
        return replace(
            self,
            errors=tuple(a.worst(b) for a, b in zip(self.errors, other.errors, strict=True)),
            inputs_mutated=self.inputs_mutated or other.inputs_mutated,
            update_differs=self.update_differs or other.update_differs,
            unfinished=self.unfinished or other.unfinished,
            structure_differs=self.structure_differs or other.structure_differs,
            shape_differs=self.shape_differs or other.shape_differs,
            layout_differs=self.layout_differs or other.layout_differs,
            dtype_differs=self.dtype_differs or other.dtype_differs,
            foreign_type=self.foreign_type or other.foreign_type,
            state_differs=self.state_differs or other.state_differs,
            stale=self.stale or other.stale,
        )


@dataclass(frozen=True)
class RoundObservation:
    """One timed round of one process pair, by the supervisor's clock."""

    pair: int
    single: bool
    """One input set per "go", or all in one."""
    calls: int
    reference_s: float
    candidate_s: float
    """Seconds from "go" to "done" for all calls of the round."""
    reference_collect_s: float = 0.0
    candidate_collect_s: float = 0.0
    """Of handing outputs over."""
    reference_left_s: float = 0.0
    candidate_left_s: float = 0.0
    """Behind "done" of a batch on a GPU: our own work there, which takes longer while the GPU is
    busy; 0 of single sets, and on the CPU."""
    void: str = ""
    """Why the round does not count: drift of the reference, a busy device."""
    rung: bool = False
    """Of a single-set round: its calls began by a bell instead of the pipe."""


@dataclass(frozen=True)
class RuntimeClaim:
    """What a candidate's worker says of its own process after its calls."""

    patched: tuple[str, ...] = ()
    """Functions of torch, time, gc or the harness that are no longer what they were."""
    flags: tuple[str, ...] = ()
    """Settings of torch that it changed: `cudnn.benchmark: False -> True`."""
    peak_device_bytes: int | None = None
    kernels: tuple[str, ...] = ()
    """What its compiled kernels take, a line each."""

    def joined(self, other: RuntimeClaim) -> RuntimeClaim:
        """Both, each fact once."""
        return RuntimeClaim(
            tuple(dict.fromkeys(self.patched + other.patched)),
            tuple(dict.fromkeys(self.flags + other.flags)),
            max(self.peak_device_bytes or 0, other.peak_device_bytes or 0) or None,
            tuple(dict.fromkeys(self.kernels + other.kernels)),
        )


@dataclass(frozen=True)
class TreeFacts:
    """A worker's process tree, measured from outside."""

    threads_before: int = 0
    """After the harness was set up, before any foreign code."""
    threads: int = 0
    """The most seen after its calls."""
    processes: tuple[str, ...] = ()
    """Commands that were alive beside it."""
    idle_s: float = 0.0
    """While it had been asked nothing and was not stopped."""
    idle_spells: int = 0
    """In so many pieces."""
    idle_cpu_s: float = 0.0
    """CPU time that its threads used meanwhile."""
    peak_bytes: int = 0
    """Host memory, shared pages included."""
    peak_device_bytes: int | None = None
    """Of torch's allocator: a claim, on the candidate's side."""

    def joined(self, other: TreeFacts) -> TreeFacts:
        """Of two workers of one candidate."""
        return TreeFacts(
            max(self.threads_before, other.threads_before),
            max(self.threads, other.threads),
            tuple(dict.fromkeys(self.processes + other.processes)),
            self.idle_s + other.idle_s,
            self.idle_spells + other.idle_spells,
            self.idle_cpu_s + other.idle_cpu_s,
            max(self.peak_bytes, other.peak_bytes),
            max(self.peak_device_bytes or 0, other.peak_device_bytes or 0) or None,
        )


@dataclass(frozen=True)
class Provenance:
    """Where a call's time went, by a profiler in a worker of its own: evidence, never proof."""

    unit: str
    """`device` or `host`."""
    total_s: float
    """Of one call: all kernels and copies, or all of the host's time."""
    own_s: float
    """In kernels that are no library's; on the CPU, outside torch's operators."""
    names: tuple[tuple[str, str, float], ...] = ()
    """(origin, kernel or operator, share of the total), the largest first."""
    problem: str = ""
    """Why there is nothing to tell."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Of one call, by Nsight Compute's names, in their own units
    (sandbox/machine/hardware_counters.py)."""
    uncounted: str = ""
    """Why there are no counters, on a GPU."""

    @property
    def own_share(self) -> float | None:
        return self.own_s / self.total_s if self.total_s > 0 else None


@dataclass(frozen=True)
class Observation:
    task_id: str
    candidate_id: str
    rejected: str = ""
    """Why the source, or its way of holding parameters, can never be legitimate."""
    source: Scan = field(default_factory=Scan)
    language: Language = Language.TORCH
    runtime: RuntimeClaim | None = None
    """Claimed after the candidate's calls; None where it came to none."""
    machine_code: str = ""
    """Claimed: a digest of what it was compiled to."""
    tree: TreeFacts = field(default_factory=TreeFacts)
    reference_tree: TreeFacts = field(default_factory=TreeFacts)
    provenance: Provenance | None = None
    """Of promotion candidates only."""
    failure: Failure | None = None
    parameters: str = "none"
    cases: tuple[CaseObservation, ...] = ()
    timed: tuple[CaseObservation, ...] = ()
    """The worst of all timed rounds, against the reference worker's outputs: of inputs as given,
    and of each hidden kind."""
    own_error: float = 0.0
    """The norm of the reference's error, which is in all that timed outputs are compared with."""
    rounds: tuple[RoundObservation, ...] = ()
    sets: int = 0
    planned_sets: int = 0
    """Of a batch, for candidates that are neither slow nor quick."""
    launches_at_least: float | None = None
    """Seconds that as many calls need at the device's measured minimal launch cost."""
    floor_s: float | None = None
    """Seconds per call that compulsory bytes need at measured bandwidth; None where it does not
    bind.
    """
    noise_floor: float = 0.0
    build_log: str = ""
    stdout: str = ""
    stderr: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
