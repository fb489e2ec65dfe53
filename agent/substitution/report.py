"""What `apply` found: places, correctness end to end, latency before and after, what was kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox.figures import Interval

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PlaceFound:
    """One occurrence of an operator's graph in the model."""

    operator: str
    module: str
    nodes: tuple[str, ...]
    state: str
    """`replaced`, or why it is not."""

    @property
    def replaced(self) -> bool:
        return self.state == "replaced"


@dataclass(frozen=True)
class Check:
    """One comparison of the patched model with the model, over several sets of inputs."""

    what: str
    """`output 0`, or `gradient of blocks.0.norm.weight`."""
    error: float
    """Relative error norm, the worst of all sets."""
    bound: float
    passed: bool


@dataclass(frozen=True)
class Verified:
    """End to end; nothing compared is a failure."""

    outputs: tuple[Check, ...] = ()
    gradients: tuple[Check, ...] = ()
    no_gradients: str = ""
    """Why no gradient was compared; empty where some were."""
    oracle: str = "float64"
    kernels: Mapping[str, int] = field(default_factory=dict)
    """Calls that a kernel did, by operator, while outputs were compared."""
    idle: Mapping[str, str] = field(default_factory=dict)
    """Operators whose kernel did none of them, and why: of those nothing was proven."""

    @property
    def passed(self) -> bool:
        checks = (*self.outputs, *self.gradients)
        return bool(self.outputs) and all(c.passed for c in checks)

    @property
    def worst(self) -> Check | None:
        """The failure that is furthest off, else the comparison closest to its bound."""
        checks = (*self.outputs, *self.gradients)
        key = lambda c: (not c.passed, c.error / c.bound if c.bound else c.error)  # noqa: E731
        return max(checks, key=key, default=None)


@dataclass(frozen=True)
class Latency:
    """Of a forward pass without gradients, the model as it is against patched."""

    before_ms: float
    after_ms: float
    speedup: Interval
    pairs: int
    """Fresh processes behind the interval."""
    floor: float
    """The largest ratio that the unpatched model showed against itself in one of them."""

    @property
    def slower(self) -> bool:
        return self.speedup.high < 1

    @property
    def says(self) -> str:
        if self.slower:
            return "slower"
        return "faster" if self.speedup.low > 1 else "the interval holds 1.0: no difference shown"

    def __str__(self) -> str:
        ratio = f"{self.speedup.value:.3f}x [{self.speedup.low:.3f}, {self.speedup.high:.3f}]"
        return f"{self.before_ms:.3f} ms -> {self.after_ms:.3f} ms, {ratio}: {self.says}"


@dataclass(frozen=True)
class Application:
    """One model and one library on one machine."""

    model: str
    package: str
    device: str
    places: tuple[PlaceFound, ...]
    missing: Mapping[str, str]
    """Operators without any place, and modules that could not be traced, with the reason."""
    kept: tuple[str, ...]
    """Operators that stay in."""
    taken_back: Mapping[str, str] = field(default_factory=dict)
    """Operators that fitted and were wrong, slower, or left to their reference."""
    verified: Verified | None = None
    latency: Latency | None = None
    """Of the model with the operators that were kept."""
    alone: Mapping[str, Latency] = field(default_factory=dict)
    """With one operator at a time."""
    environment: Mapping[str, str] = field(default_factory=dict)
    compiled: Latency | None = None
    """Of the model as it is under torch.compile."""
    not_compiled: str = ""
    """Why there is none; empty also where it was not asked for."""
    schema_version: int = SCHEMA_VERSION


def lines(found: Application) -> list[str]:
    """For readers: places, correctness, figures, and how to have the same in Python."""
    told = []
    for place in sorted(found.places, key=lambda p: (not p.replaced, p.operator)):
        where = place.module or "the model"
        told.append(f"{place.operator}: {where} ({', '.join(place.nodes)}): {place.state}")
    told += [f"{name}: {reason}" for name, reason in found.missing.items()]
    if found.verified is not None:
        told += _verified(found.verified)
    for name, latency in found.alone.items():
        told.append(f"with {name} alone: {latency}")
    told += [f"taken back: {name}: {reason}" for name, reason in found.taken_back.items()]
    if found.latency is not None:
        told.append(f"the model: {found.latency}")
        told.append(
            f"({found.latency.pairs} fresh processes, in turns; the unpatched model against itself "
            f"was up to {found.latency.floor:.1%} off)"
        )
    if found.compiled is not None:
        told.append(f"instead, the model as it is under torch.compile: {found.compiled}")
    elif found.not_compiled:
        told.append(f"torch.compile of the model as it is failed: {found.not_compiled}")
    if found.kept:
        only = "" if not found.taken_back else f", only={list(found.kept)}"
        told.append(
            f"in Python: import {found.package}; {found.package}.patch(model, *inputs{only})"
        )
    else:
        told.append("nothing is replaced: the model stays as it is")
    return told


def _verified(found: Verified) -> list[str]:
    worst = found.worst
    if worst is None:
        return ["nothing could be compared"]
    counts = f"{len(found.outputs)} outputs"
    counts += f" and {len(found.gradients)} gradients" if found.gradients else ""
    verdict = "agree" if found.passed else "DIFFER"
    told = [
        f"{counts} {verdict} with the unpatched model's against {found.oracle}; closest to its "
        f"bound: {worst.what}, error {worst.error:.1e} of {worst.bound:.1e}"
    ]
    ran = ", ".join(f"{name} {count}" for name, count in found.kernels.items() if count)
    told.append(f"kernel calls while comparing: {ran or 'none'}")
    if found.no_gradients:
        told.append(f"no gradients were compared: {found.no_gradients}")
    return told
