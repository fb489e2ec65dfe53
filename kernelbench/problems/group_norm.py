"""Group normalisation of images, with scale and shift per channel.

x (BATCH, CHANNELS, H, W), weight and bias (CHANNELS,) -> the same shape, float32.
Expected bound: memory. A group is too large for one block's registers, so it may be read twice.
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 32
CHANNELS = 128
H = 64
W = 128
GROUPS = 16
SHAPES = {
    "cpu": [
        {"name": "8x64x48x64x8", "BATCH": 8, "CHANNELS": 64, "H": 48, "W": 64, "GROUPS": 8},
        {"name": "3x21x13x27x7", "BATCH": 3, "CHANNELS": 21, "H": 13, "W": 27, "GROUPS": 7},
    ],
    "gpu": [
        {"name": "32x128x64x128x16", "BATCH": 32, "CHANNELS": 128, "H": 64, "W": 128, "GROUPS": 16},
        {"name": "3x21x37x53x7", "BATCH": 3, "CHANNELS": 21, "H": 37, "W": 53, "GROUPS": 7},
    ],
}


class Model(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, self.groups, self.weight, self.bias, eps=1e-5)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, H, W)]


def get_init_inputs() -> list[int]:
    return [CHANNELS, GROUPS]
