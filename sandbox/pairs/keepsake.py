"""Outputs of timed calls that are kept: alive in the worker, or out of its reach.

"Every returned tensor stays valid after later calls" (docs/contract.md): buffers that come round
again after a batch, one per input address or in a ring, are seen only by who still holds one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sandbox.machine import memory
from sandbox.subjects.subject import Subject

KEPT_BYTES = {"cpu": 512 << 20, "cuda": 64 << 20}
"""Of one set's outputs, above which none is kept: both sides would hold it for a whole pair, and
calls with so much to write fill a GPU, so that none gains by waiting for the next one. On the CPU
who does not allocate gains by every page: 3.3x of 72 MB."""
COPIED_BYTES = 64 << 20
"""Of one set's outputs, up to which those of lone calls are copied."""


class Keepsake:
    """Of one candidate in one pair; taken once."""

    def __init__(self, subject: Subject, *, able: bool) -> None:
        """`able`: outputs own their memory, so that nothing may change them."""
        self.subject = subject
        self.able = able
        self.leaves: list[torch.Tensor] = []

    def wanted(self, output_bytes: int) -> bool:
        """Whether the next batch should leave one behind."""
        most = KEPT_BYTES[self.subject.task.device]
        return self.able and not self.leaves and 0 < output_bytes <= most

    def take(self, index: int) -> None:
        """What the worker delivered for set `index`, whose output it was asked to keep."""
        count = len(self.subject.layouts["slots"].leaves)
        self.leaves = [self.subject.leaf("slots", index, leaf).clone() for leaf in range(count)]

    def intact(self, until_idle: Callable[[], None] = lambda: None) -> bool:
        """Whether that output is still what it was; overwrites slot 0. `until_idle`: a worker that
        answers before its copy is there has another fault than this.
        """
        if not self.leaves:
            return True
        self.subject.poison("slots", 0, 1)
        self.subject.request("recollect", self.subject.config.run_timeout_s, set=0)
        until_idle()
        return all(
            torch.equal(_bytes(kept), _bytes(self.subject.leaf("slots", 0, leaf)))
            for leaf, kept in enumerate(self.leaves)
        )


class HandedOver:
    """What a candidate's lone calls left in their slots, before it sees the next call's inputs.

    Its slots stay mapped: an output that it only promised could be written there together with
    those of later calls.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._slots: dict[int, torch.Tensor] = {}
        self._room: list[torch.Tensor] = []
        """Of copies that were put back: on the CPU new pages take longer than the copy."""

    def take(self, index: int) -> None:
        """Copy slot `index`; to be called while the candidate stands still."""
        slot = self.subject.set_bytes("slots", index)
        if slot.numel() <= COPIED_BYTES:
            room = self._room.pop() if self._room else torch.empty_like(slot)
            self._slots[index] = room.copy_(slot)

    def put_back(self) -> None:
        """Make every slot what it was when it was handed over; likewise."""
        for index, slot in self._slots.items():
            self.subject.set_bytes("slots", index).copy_(slot)

    def output(self, index: int, leaf: int) -> torch.Tensor | None:
        """Of a lone call, as it was handed over, whatever is written to its slot now; None where it
        was too large for a copy.
        """
        if index not in self._slots:
            return None
        layout = self.subject.layouts["slots"]
        return memory.leaf_view(self._slots[index], layout, 0, leaf)

    def forget(self) -> None:
        """The copies of the round that was."""
        self._room += [slot for slot in self._slots.values() if not slot.is_cuda]
        self._slots.clear()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
