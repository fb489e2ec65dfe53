"""Number of occurrences of each value.

values (N,) int64 in [0, BINS) -> counts (BINS,) int64, exact.
Expected bound: memory, each value read once, if counts are kept on chip; low values are frequent,
so that atomics on them collide.
"""

import torch
from torch import nn

N = 16777216
BINS = 256
SHAPES = {
    "cpu": [
        {"name": "131072x256", "N": 131072, "BINS": 256},
        {"name": "50021x100", "N": 50021, "BINS": 100},
    ],
    "gpu": [
        {"name": "16777216x256", "N": 16777216, "BINS": 256},
        {"name": "1000003x100", "N": 1000003, "BINS": 100},
    ],
}


class Model(nn.Module):
    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        # One bin per integer, so the float32 bin index is exact; counts are exact below 2^24.
        counts = torch.histc(values.float(), bins=self.bins, min=0, max=self.bins)
        return counts.to(torch.int64)


def get_inputs() -> list[torch.Tensor]:
    # Squaring makes low values frequent: with equal frequencies every count is nearly the same.
    return [(torch.rand(N).square() * BINS).long().clamp(max=BINS - 1)]


def get_init_inputs() -> list[int]:
    return [BINS]
