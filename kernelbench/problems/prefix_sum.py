"""Inclusive prefix sum of every row.

x (ROWS, COLS) -> (ROWS, COLS), float32.
Expected bound: memory, each element read once and written once with a single-pass scan.
"""

import torch
from torch import nn

ROWS = 2048
COLS = 16384
SHAPES = {
    "cpu": [
        {"name": "768x2048", "ROWS": 768, "COLS": 2048},
        {"name": "33x1027", "ROWS": 33, "COLS": 1027},
    ],
    "gpu": [
        {"name": "2048x16384", "ROWS": 2048, "COLS": 16384},
        {"name": "257x10007", "ROWS": 257, "COLS": 10007},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return []
