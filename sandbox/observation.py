"""What one evaluation saw: what the supervisor *measured* and what a worker *claims*, never mixed.

`judge` turns an Observation into an Evaluation; it reads claims only where they can hurt the
claimant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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


@dataclass(frozen=True)
class LeafClaim:
    """What the worker says of one returned tensor."""

    shape: tuple[int, ...]
    dtype: str
    stride_class: str
    type_name: str


@dataclass(frozen=True)
class CaseObservation:
    """One correctness case on the candidate."""

    name: str
    errors: tuple[Errors, ...] = ()
    """Per output leaf, measured against the oracle."""
    bounds: tuple[Errors, ...] = ()
    inputs_mutated: bool = False
    structure_differs: str = ""
    """Claimed: how the returned structure differs from the reference's; empty if it does not."""
    shape_differs: str = ""
    dtype_differs: str = ""
    foreign_type: str = ""
    """Claimed: a returned tensor subclass."""
    state_differs: bool = False


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
    void: str = ""
    """Why the round does not count: drift of the reference, a busy device."""


@dataclass(frozen=True)
class Observation:
    task_id: str
    candidate_id: str
    rejected: str = ""
    """Static triage: why the source can never be legitimate."""
    failure: Failure | None = None
    parameters: str = "none"
    cases: tuple[CaseObservation, ...] = ()
    timed: CaseObservation | None = None
    """The worst of all timed rounds, against the reference worker's outputs."""
    rounds: tuple[RoundObservation, ...] = ()
    sets: int = 0
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
