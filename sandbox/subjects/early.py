"""What a search's candidate has of a GPU's memory before its turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.subjects.signature import Signature


@dataclass(frozen=True)
class Early:
    """What a worker has before its turn."""

    sizes: Mapping[str, int]
    """Bytes of each arena."""
    outputs: int
    """Bytes for its calls' outputs, in torch's allocator."""
    first: Signature
    calls: int
    """What it will be verified with first."""
    rung_for: Signature | None
    """What lone calls are rung for with, where the bell does not carry inputs."""
    within: int
    """Bytes that all who wait may have together,"""
    least_free: int
    """and that are free then, or none is given."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values()) + self.outputs
