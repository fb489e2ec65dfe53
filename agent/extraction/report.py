"""What an extraction found: every region with its time, and what a faster one would be worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.extraction.figures import Sample

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Occurrence:
    """One of the equal regions, with what it was given."""

    place: str
    """The module that holds it; empty text is the model itself."""
    calls: int
    call_ms: float
    inputs: Mapping[str, Sample] = field(default_factory=dict)
    """By the task's names, arguments and state; empty where no task was written."""
    seen: int = 0
    """Calls behind those figures."""


@dataclass(frozen=True)
class FoundRegion:
    """Equal regions of a model, as one task or as none."""

    name: str
    """Of its file, without `.py`."""
    form: str
    """fused, operator or epilogue (agent/extraction/regions.py)."""
    operations: tuple[str, ...]
    shape: str
    """Of the inputs, for readers."""
    places: tuple[str, ...]
    """Modules that hold it, one for each occurrence; empty text is the model itself."""
    calls: int
    """In one forward pass."""
    call_ms: float
    """Of one call, its mean over the occurrences."""
    share: float
    """Of the forward pass, all calls together."""
    refused: str | None = None
    """Why it is no task."""
    occurrences: tuple[Occurrence, ...] = ()

    @property
    def doubled(self) -> float:
        """Speedup of the whole if this were twice as fast (Amdahl 1967)."""
        return 1 / (1 - self.share / 2)

    @property
    def gone(self) -> float:
        """Speedup of the whole if this took no time; infinite where there is nothing else."""
        return float("inf") if self.share >= 1 else 1 / (1 - self.share)


@dataclass(frozen=True)
class Extraction:
    """One model on one machine; the regions by share, the largest first."""

    model: str
    model_sha256: str
    device: str
    latency_ms: float
    """Of the model as it is, median wall time of a forward pass."""
    profiled_ms: float
    """The sum over all operations, each in its range of the profiler."""
    regions: tuple[FoundRegion, ...]
    untraceable: Mapping[str, str] = field(default_factory=dict)
    """Modules without a graph, by name, and why."""
    environment: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


HEADER = ("task", "form", "calls", "a call", "share", "2x", "no time", "shapes")


def lines(found: Extraction, written: Sequence[str]) -> list[str]:
    """The table of the tasks that were written, with what can be none below."""
    tasks = [r for r in found.regions if r.refused is None and r.name in written]
    rows = [HEADER, *map(_cells, tasks)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    told = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    told.append(
        f"{found.model}: {found.latency_ms:.3f} ms a forward pass on {found.device}; "
        f"{found.profiled_ms:.3f} ms in its operations, profiled one by one"
    )
    if any(r.form == "epilogue" for r in tasks):
        told.append("an epilogue overlaps the operator and the fused region that it joins")
    for region in (r for r in found.regions if r.refused is not None):
        told.append(f"no task: {region.name} ({region.share:.1%}): {region.refused}")
    for name, reason in found.untraceable.items():
        told.append(f"not traced: {name or 'the model'}: {reason}")
    return told


def _cells(region: FoundRegion) -> tuple[str, ...]:
    gone = "-" if region.gone == float("inf") else f"{region.gone:.2f}x"
    return (
        region.name,
        region.form,
        str(region.calls),
        f"{region.call_ms:.3f} ms",
        f"{region.share:.1%}",
        f"{region.doubled:.2f}x",
        gone,
        region.shape,
    )
