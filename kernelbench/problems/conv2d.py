"""Two-dimensional convolution with bias, stride 1, "same" padding.

x (N, C, H, W), weight (FILTERS, C, KERNEL, KERNEL)
-> (N, FILTERS, H, W), float32; KERNEL is odd.
Expected bound: compute. cuDNN uses TF32 tensor cores where the protocol allows them.
"""

import torch
from torch import nn

N = 16
C = 64
FILTERS = 128
H = 128
W = 128
KERNEL = 3
SHAPES = {
    "cpu": [
        {"name": "8x16x32x32x32x3", "N": 8, "C": 16, "FILTERS": 32, "H": 32, "W": 32, "KERNEL": 3},
        {"name": "3x7x13x29x35x5", "N": 3, "C": 7, "FILTERS": 13, "H": 29, "W": 35, "KERNEL": 5},
    ],
    "gpu": [
        {
            "name": "16x64x128x128x128x3",
            "N": 16,
            "C": 64,
            "FILTERS": 128,
            "H": 128,
            "W": 128,
            "KERNEL": 3,
        },
        {"name": "3x13x37x61x83x5", "N": 3, "C": 13, "FILTERS": 37, "H": 61, "W": 83, "KERNEL": 5},
    ],
}


class Model(nn.Module):
    def __init__(self, channels: int, filters: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, padding=kernel // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(N, C, H, W)]


def get_init_inputs() -> list[int]:
    return [C, FILTERS, KERNEL]
