"""Evidence by layer: which independent defence saw what, and what kind of candidate it is.

A layer's words are facts for a reader; only `Weight.PROOF` decides a verdict
(sandbox/judging/judge.py). Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MACHINE_CODE = "machine code "
"""Begins the runtime fact with the digest of what a candidate was compiled to."""


class Layer(StrEnum):
    """The independent defences (docs/measuring.md, docs/walls.md), in the order they are asked."""

    STATIC = "static analysis"
    PROCESS = "process split"
    VALUES = "verified values"
    HIDDEN_INPUTS = "hidden inputs"
    HIDDEN_PARAMETERS = "hidden parameters"
    RUNTIME = "runtime facts"
    TREE = "process tree"
    PRECISION = "precision signature"
    TIMING = "single-set rounds"
    IDLE = "idle device"
    ROOFLINE = "memory roofline"
    LAUNCH = "launch floor"
    MEMORY = "peak memory"
    HOST = "host against device"
    PROVENANCE = "provenance"


class Weight(StrEnum):
    """How much a layer's facts say against the candidate."""

    CLEAN = "clean"
    NOTED = "noted"
    """Legal, and worth knowing: flags, threads, library calls."""
    SUSPICIOUS = "suspicious"
    """Honest code rarely does it, but it may: a reader should look."""
    PROOF = "proof"
    """No honest candidate can produce it."""


class Kind(StrEnum):
    """What makes a candidate fast; reports keep kernels apart from the rest."""

    KERNEL = "custom kernel"
    REWRITE = "library rewrite"
    FLAGS = "flags"
    """It changes global torch settings, such as TF32: no figure of its kernel alone."""
    GRAPH = "graph wrapper"


@dataclass(frozen=True)
class Evidence:
    """What one layer saw, whether or not it decided the verdict."""

    layer: Layer
    weight: Weight
    facts: tuple[str, ...] = ()

    @property
    def against(self) -> bool:
        """Whether a reader should look before the figure is believed."""
        return self.weight in (Weight.SUSPICIOUS, Weight.PROOF)

    def __str__(self) -> str:
        return f"{self.layer}: {'; '.join(self.facts) or self.weight}"
