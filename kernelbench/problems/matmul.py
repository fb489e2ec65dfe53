"""Product of two float32 matrices.

a (M, K) @ b (K, N) -> (M, N), float32, contiguous.
Expected bound: compute, 2 M N K operations; TF32 tensor cores only where the protocol allows them.
"""

import torch
from torch import nn

M = 2048
K = 2048
N = 2048
SHAPES = {
    "cpu": [
        {"name": "256x512x256", "M": 256, "K": 512, "N": 256},
        {"name": "127x250x131", "M": 127, "K": 250, "N": 131},
    ],
    "gpu": [
        {"name": "2048x2048x2048", "M": 2048, "K": 2048, "N": 2048},
        {"name": "1000x1533x777", "M": 1000, "K": 1533, "N": 777},
    ],
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs() -> list[int]:
    return []
