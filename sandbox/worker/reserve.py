"""Memory for a batch's outputs, which is there before the batch is timed."""

from __future__ import annotations

import contextlib

import torch

from sandbox.machine.trees import Layout

PIECE_BYTES = 16 << 20
"""Small enough for the heap; what is larger is mapped afresh for every tensor."""
SMALL_BYTES, PAGE_BYTES = 1 << 20, 512
"""On a GPU torch's allocator has segments of 2 MiB for tensors up to here, and rounds all sizes."""


def on_device(slots: Layout, count: int) -> None:
    """A segment that torch's allocator cuts many sets' outputs from: one by one, 185 took 0.5 s."""
    torch.cuda.empty_cache()  # nothing of what verification left fits what is cut now
    segment(count * cut(slots))


def cut(slots: Layout) -> int:
    """Bytes of a set's outputs that are cut from a segment."""
    large = [leaf.bytes for leaf in slots.leaves if leaf.bytes > SMALL_BYTES]
    return sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in large)


def segment(size: int) -> None:
    """For torch's allocator to keep, if there is memory for it."""
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(size, dtype=torch.uint8, device="cuda")


def on_host(slots: Layout, count: int) -> None:
    """Touched heap, in order: where pages lie is up to who touches them first, and those of a
    transpose's output took twice as long to read.
    """
    left = count * slots.stride
    pieces = []
    while left > 0:
        pieces.append(torch.empty(min(left, PIECE_BYTES), dtype=torch.uint8).zero_())
        left -= PIECE_BYTES
