"""The nouns: Task, Candidate, EvalConfig, Evaluation and their parts. Standard library only.

Claim -> judgement -> value: a worker *claims*, the supervisor *measures* (both make an
`Observation`, sandbox/observation.py), `judge` concludes (an `Evaluation`), a reward function
scores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sandbox.evidence import Evidence, Kind
from sandbox.figures import Baseline, Interval, Timing

SCHEMA_VERSION = 2
"""Of every JSON record made from these types."""


class Language(StrEnum):
    """How a candidate's kernel is written and built (docs/contract.md)."""

    CPP = "cpp"
    CUDA = "cuda"
    CUDA_INLINE = "cuda_inline"
    TRITON = "triton"
    TORCH = "torch"

    @property
    def custom_kernel(self) -> bool:
        """False for a PyTorch-level rewrite, which reports keep apart."""
        return self is not Language.TORCH

    @property
    def loads_inline(self) -> bool:
        """True where kernels are compiled by `load_inline`."""
        return self in (Language.CPP, Language.CUDA_INLINE)

    @property
    def needs_gpu(self) -> bool:
        """True where a kernel of it can only run, and so be judged, on a GPU."""
        return self in (Language.CUDA, Language.CUDA_INLINE, Language.TRITON)

    @property
    def needs_build(self) -> bool:
        """True where a walled build process compiles ahead of the run."""
        return self.loads_inline or self is Language.TRITON


class Status(StrEnum):
    """The verdict's one word."""

    PASSED = "PASSED"
    REJECTED = "REJECTED"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    WRONG_VALUE = "WRONG_VALUE"
    INPUT_MUTATED = "INPUT_MUTATED"
    REWARD_HACK = "REWARD_HACK"
    INVALID_REFERENCE = "INVALID_REFERENCE"
    SANDBOX_ERROR = "SANDBOX_ERROR"

    @property
    def scored(self) -> bool:
        """False where the fault is the task's or ours: such an evaluation has no reward."""
        return self not in (Status.INVALID_REFERENCE, Status.SANDBOX_ERROR)


@dataclass(frozen=True)
class Shape:
    """One size of a problem: module constants to set before `get_inputs` is called."""

    name: str
    constants: tuple[tuple[str, int | float], ...] = ()


@dataclass(frozen=True)
class Task:
    """A PyTorch reference in KernelBench's contract, and the sizes it is judged at."""

    id: str
    """Suite and problem, such as `builtin/softmax` or `kernelbench/level1/19_ReLU`."""
    source: str
    """Python source that defines Model, get_inputs() and get_init_inputs(). Trusted, but it runs
    in a worker.
    """
    device: str
    """`cpu` or `cuda`."""
    dtype: str = "float32"
    """Floating inputs and parameters are cast to it; integer and bool tensors keep their type."""
    shapes: tuple[Shape, ...] = (Shape("given"),)
    """The first is the one that is timed; all are checked."""
    exact_float32: bool = False
    """TF32 is refused on both sides whatever the EvalConfig says."""

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; expected 'cpu' or 'cuda'")
        if not self.shapes:
            raise ValueError(f"{self.id}: a task needs at least one shape")

    @property
    def hash(self) -> str:
        """Content hash: equal for tasks that ask the same question."""
        shapes = [[s.name, s.constants] for s in self.shapes]
        return digest([self.source, self.device, self.dtype, shapes, self.exact_float32])


@dataclass(frozen=True)
class Candidate:
    """Source text that defines ModelNew (docs/contract.md)."""

    task_id: str
    language: Language
    source: str

    @property
    def id(self) -> str:
        """Content hash: equal code is equal whoever wrote it."""
        return digest([self.task_id, self.language.value, self.source])


CHANGES = ("flattened", "one element changed", "samples permuted", "part negated", "masks moved")
BASELINES = ("compile", "max_autotune", "cuda_graph")
ABOVE_ZERO = (
    "reference_error_factor",
    "batch_ms",
    "search_batch_ms",
    "max_sets",
    "search_pairs",
    "target_half_width",
    "build_timeout_s",
    "load_timeout_s",
    "run_timeout_s",
    "memory_limit_bytes",
    "log_limit_bytes",
)


@dataclass(frozen=True)
class EvalConfig:
    """The protocol as data. Equal `id` means comparable figures."""

    preset: str = "quick"
    scales: tuple[float, ...] = (3.0, 0.01, -1.0, 128.0)
    """Value cases beside the inputs as given: float arguments multiplied, where float64 stays
    finite.
    """
    changes: tuple[str, ...] = CHANGES
    """Further cases made from the first one's inputs (sandbox/checking/hidden.py)."""
    reference_error_factor: float = 4.0
    """Allowed error = max(class constant, this x the reference's own error against float64)."""
    tf32: bool = True
    """TF32 matmul and convolution allowed, on both sides alike."""
    torch_default_precision: bool = False
    """KernelBench's policy: torch's default flags on both sides, `tf32` ignored."""
    require_matched_parameters: bool = True
    """Refuse candidates whose parameters match the reference's only through a shared seed: then the
    reference keeps its initial values, which hide a dropped scale or bias."""
    dense_layouts: bool = False
    """Outputs may be dense in another order than the reference's: KernelBench compares values. What
    handing such a one over takes longer than the reference's is charged."""
    check_state: bool = True
    """Buffers that the reference's calls move must be moved alike."""
    batch_ms: float = 20.0
    """A timed batch holds enough calls to last this long, memory allowing."""
    search_batch_ms: float = 10.0
    """Of a search, whose figures only rank: the shortest that calls over 30 us bear."""
    max_sets: int = 512
    rounds: int = 8
    """Timed batches per process pair, single-set rounds included."""
    single_share: float = 0.25
    """Expected share of rounds that disclose one input set per "go"; which ones is secret."""
    min_pairs: int = 3
    """Fresh process pairs behind any reported win."""
    max_pairs: int = 6
    search_pairs: int = 1
    """At most so many while a campaign searches; what it finds is confirmed on fresh pairs."""
    target_half_width: float = 0.01
    """Stop adding pairs once the interval of log speedup is narrower than this (or the noise
    floor).
    """
    confidence: float = 0.95
    build_timeout_s: float = 180.0
    load_timeout_s: float = 60.0
    run_timeout_s: float = 60.0
    """For one batch of calls."""
    memory_limit_bytes: int = 8 << 30
    """Host memory a candidate's process tree may hold beside twice the task's parameters, and again
    as much in files; on the CPU its arenas are not counted.
    """
    log_limit_bytes: int = 16 << 10
    """Build output, stdout and stderr kept per Evaluation, head and tail."""
    baselines: tuple[str, ...] = ("compile",)
    """Measured beside eager: compile, max_autotune, cuda_graph."""
    profile_searches: bool = False
    """Profile whatever is right, not only what may be promoted: a reward by coverage needs it."""
    hardware_counters: bool = True
    """Read some of a GPU's in a profile, for whoever is to make the kernel faster: 2 s (H200)."""
    verify_only: bool = False
    """Time nothing: what passes has no figure, and can be no winner. For learning what is right."""
    baselines_only: bool = False
    """No candidate is to come: cases are not made, and the null experiment is like the baselines,
    rounds of calls alone."""

    def __post_init__(self) -> None:
        if self.min_pairs < 2 or self.max_pairs < self.min_pairs:
            raise ValueError(
                f"pairs are {self.min_pairs}..{self.max_pairs}; "
                "expected 2 <= min_pairs <= max_pairs"
            )
        if not 0.5 < self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}; expected between 0.5 and 1")
        if self.rounds < 2 or not 0 < self.single_share < 1:
            raise ValueError(
                f"rounds are {self.rounds}, of which {self.single_share} disclose single sets; "
                "expected at least 2, and a share between 0 and 1"
            )
        for name in ABOVE_ZERO:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected above 0")
        for name, known in (("changes", CHANGES), ("baselines", BASELINES)):
            unknown = sorted(set(getattr(self, name)) - set(known))
            if unknown:
                raise ValueError(f"{name} has {unknown[0]!r}; expected some of {', '.join(known)}")

    @property
    def id(self) -> str:
        """Of what makes figures; a profile comes after them."""
        left_out = {"profile_searches", "hardware_counters"}
        left_out |= set() if self.verify_only else {"verify_only"}
        # As before there was such a choice.
        left_out |= {
            name for name in ("dense_layouts", "baselines_only") if not self.__dict__[name]
        }
        return digest({k: v for k, v in self.__dict__.items() if k not in left_out})


@dataclass(frozen=True)
class Request:
    """One candidate to judge: the arguments of `Evaluator.evaluate`."""

    task: Task
    candidate: Candidate
    config: EvalConfig
    to_beat: float | None = None


@dataclass(frozen=True)
class CaseResult:
    """One correctness case: a shape, a value scale, and the worst errors found (relative,
    unitless).
    """

    name: str
    passed: bool
    norm_error: float | None = None
    """||out - truth|| / ||truth||, against the oracle."""
    bound: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Evaluation:
    """What *we* conclude about a candidate."""

    task_id: str
    candidate_id: str
    config_id: str
    status: Status
    detail: str = ""
    """One readable line: why this status, addressed to whoever wrote the candidate."""
    cases: tuple[CaseResult, ...] = ()
    timing: Timing | None = None
    baselines: tuple[Baseline, ...] = ()
    precision: str | None = None
    """Class of the worst norm error: float32, tf32, bfloat16, float8 or looser."""
    parameters: str = "none"
    """How parameters were matched: none, name, order, seed."""
    evidence: tuple[Evidence, ...] = ()
    """By layer, in the order they were asked."""
    kind: Kind | None = None
    """What makes it fast; None unless it passed."""
    own_share: float | None = None
    """Of its time, in kernels that are no library's; None where it was not profiled."""
    peak_bytes: int | None = None
    """Most memory that its worker held: a GPU's by torch's allocator, which tells what the worker
    claims, else the host's, shared pages included."""
    reference_peak_bytes: int | None = None
    """Likewise of the reference's."""
    no_room: bool = False
    """Not scored, since the device has no room for the task and, as far as is known, never had."""
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage: build, load, verify, time, ..."""
    build_log: str = ""
    stdout: str = ""
    stderr: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    @property
    def suspicions(self) -> tuple[Evidence, ...]:
        """What a reader should look at before the figure is believed."""
        return tuple(found for found in self.evidence if found.against)

    @property
    def speedup(self) -> Interval | None:
        """Against eager; None unless the candidate passed and was timed."""
        return self.timing.speedup if self.passed and self.timing is not None else None


class Evaluator(Protocol):
    """What the loop asks of the sandbox."""

    def evaluate(
        self, task: Task, candidate: Candidate, config: EvalConfig, *, to_beat: float | None = None
    ) -> Evaluation:
        """Judge and time one candidate; never raises for a candidate's fault.

        `to_beat` is the best speedup so far: timing stops early once the candidate cannot reach it.
        """
        ...

    def close(self) -> None:
        """End every process this evaluator started."""
        ...


def digest(value: object, characters: int = 16) -> str:
    """The content hash used for every id, in hexadecimal. Who writes two sources can make 16
    characters of theirs equal; 64 nobody can.
    """
    text = json.dumps(value, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:characters]
