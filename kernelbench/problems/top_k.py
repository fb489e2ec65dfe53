"""Largest K values of every row, in descending order.

x (ROWS, COLS) -> (ROWS, K), float32.
Expected bound: memory, each element read once, if a row's best K stay on chip.
"""

import torch
from torch import nn

ROWS = 1024
COLS = 32768
K = 64
SHAPES = {
    "cpu": [
        {"name": "256x4096x32", "ROWS": 256, "COLS": 4096, "K": 32},
        {"name": "33x1027x5", "ROWS": 33, "COLS": 1027, "K": 5},
    ],
    "gpu": [
        {"name": "1024x32768x64", "ROWS": 1024, "COLS": 32768, "K": 64},
        {"name": "257x10007x5", "ROWS": 257, "COLS": 10007, "K": 5},
    ],
}


class Model(nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, self.k, dim=-1).values


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return [K]
