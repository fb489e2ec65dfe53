"""Values that lie in a worker's memory before it may know them."""

from __future__ import annotations

import torch

KEY_BITS = 63


class Scrambler:
    """Puts the output of torch's generator (Philox on a GPU) over values; once more under the same
    key, and they are what they were. What it needs is there before it counts; 20 to 34 us for up to
    16 MiB (H200).
    """

    def __init__(self, count: int, device: torch.device) -> None:
        """For (count,) int64."""
        self._generator = torch.Generator(device)
        self._pad = torch.empty(count, dtype=torch.int64, device=device)

    def scramble(self, values: torch.Tensor, key: int, out: torch.Tensor) -> None:
        """Both (count,) int64; `out` is overwritten, and must have that size: torch would give it
        another, and what lies behind it is another call's.
        """
        assert values.shape == out.shape == self._pad.shape
        self._pad.random_(-(1 << 63), None, generator=self._generator.manual_seed(key))
        torch.bitwise_xor(values, self._pad, out=out)
