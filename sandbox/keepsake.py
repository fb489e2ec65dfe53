"""One output of a timed call that its worker keeps alive, looked at again in every later round.

"Every returned tensor stays valid after later calls" (docs/contract.md): buffers that come round
again after a batch, one per input address or in a ring, are seen only by who still holds one.
"""

from __future__ import annotations

import torch

from sandbox.subject import Subject

KEPT_BYTES = 64 << 20
"""Of one set's outputs, above which none is kept: both sides would hold it for a whole pair."""


class Keepsake:
    """Of one candidate in one pair; taken once."""

    def __init__(self, subject: Subject, *, able: bool) -> None:
        """`able`: outputs own their memory, so that nothing may change them."""
        self.subject = subject
        self.able = able
        self.leaves: list[torch.Tensor] = []

    def wanted(self, output_bytes: int) -> bool:
        """Whether the next batch should leave one behind."""
        return self.able and not self.leaves and 0 < output_bytes <= KEPT_BYTES

    def take(self, index: int) -> None:
        """What the worker delivered for set `index`, whose output it was asked to keep."""
        count = len(self.subject.layouts["slots"].leaves)
        self.leaves = [self.subject.leaf("slots", index, leaf).clone() for leaf in range(count)]

    def intact(self) -> bool:
        """Whether that output is still what it was; overwrites slot 0."""
        if not self.leaves:
            return True
        self.subject.poison("slots", 0, 1)
        self.subject.request("recollect", self.subject.config.run_timeout_s, set=0)
        return all(
            torch.equal(_bytes(kept), _bytes(self.subject.leaf("slots", 0, leaf)))
            for leaf, kept in enumerate(self.leaves)
        )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
