"""Elements of a vector in reverse order.

x (N,) -> (N,), float32.
Expected bound: memory, each element read once and written once.
"""

import torch
from torch import nn

N = 33554432
SHAPES = {
    "cpu": [
        {"name": "2097152", "N": 2097152},
        {"name": "500009", "N": 500009},
    ],
    "gpu": [
        {"name": "33554432", "N": 33554432},
        {"name": "16777259", "N": 16777259},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.flip(x, dims=(0,))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(N)]


def get_init_inputs() -> list[int]:
    return []
