"""Three-dimensional max pooling, padded with minus infinity.

x (BATCH, CHANNELS, D, H, W) -> the pooled volumes, float32.
Expected bound: memory, each element read once where overlapping windows share a tile.
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 8
CHANNELS = 32
D = 64
H = 64
W = 64
KERNEL = 3
STRIDE = 2
PADDING = 1
SHAPES = {
    "cpu": [
        {"name": "2x8x16x32x32", "BATCH": 2, "CHANNELS": 8, "D": 16, "H": 32, "W": 32},
        {"name": "3x5x9x19x23", "BATCH": 3, "CHANNELS": 5, "D": 9, "H": 19, "W": 23},
    ],
    "gpu": [
        {"name": "8x32x64x64x64", "BATCH": 8, "CHANNELS": 32, "D": 64, "H": 64, "W": 64},
        {"name": "3x5x33x35x37", "BATCH": 3, "CHANNELS": 5, "D": 33, "H": 35, "W": 37},
    ],
}


class Model(nn.Module):
    def __init__(self, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool3d(x, self.kernel, self.stride, self.padding)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, D, H, W)]


def get_init_inputs() -> list[int]:
    return [KERNEL, STRIDE, PADDING]
