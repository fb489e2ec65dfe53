"""What a model takes and gives at one shape, and how it is opened for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandbox.machine.domains import Domain
from sandbox.machine.trees import Layout, Leaf


@dataclass(frozen=True)
class Signature:
    """What the reference's worker told about the model at one shape."""

    shape: int
    seed: int
    init: dict[str, Any]
    input_tree: dict[str, Any]
    inputs: tuple[Leaf, ...]
    domains: tuple[Domain, ...]
    """What each of these visibly is."""
    state: tuple[tuple[str, Leaf], ...]
    output_tree: dict[str, Any]
    outputs: tuple[Leaf, ...]
    classes: tuple[str, ...]
    """Stride class of each output leaf."""
    repeatable: bool
    mutates: bool
    moves_state: bool
    aliases: bool
    latency_s: float
    fill_s: float
    """Seconds to make one input set: single-threaded and slow on the CPU."""
    lends: bool = False
    """Its outputs are memory that it gives out again and again, such as a mask it keeps."""

    @property
    def owns(self) -> bool:
        """Every output is memory of its own, which its caller may keep and write to."""
        return not self.aliases and not self.mutates and not self.lends

    @property
    def state_bytes(self) -> int:
        """Of parameters and buffers."""
        return sum(leaf.bytes for _, leaf in self.state)

    @property
    def input_bytes(self) -> int:
        return Layout(self.inputs, 1).stride

    @property
    def output_bytes(self) -> int:
        return Layout(self.outputs, 1).stride


@dataclass(frozen=True)
class Opening:
    """How a reference's model is built."""

    shape: int = 0
    randomise: bool = True
    """False for candidates whose parameters match only through the shared seed."""
    wrap: str | None = None
    """Baseline: compile, max_autotune or cuda_graph."""
    known: Signature | None = None
    """From an earlier worker: spares another examination."""


def layouts(signature: Signature, sets: int, slots: int) -> dict[str, Layout]:
    """Of the arenas for so many sets of inputs and slots of one shape."""
    return {
        "inputs": Layout(signature.inputs, sets),
        "slots": Layout(signature.outputs, slots),
        "state": Layout(tuple(leaf for _, leaf in signature.state), 1),
    }
