"""ReLU of every element.

x (ROWS, COLS) -> (ROWS, COLS), float32, contiguous.
Expected bound: memory, each element read once and written once. Eager is close to it already.
"""

import torch
from torch import nn

ROWS = 8192
COLS = 4096
SHAPES = {
    "cpu": [
        {"name": "1024x2048", "ROWS": 1024, "COLS": 2048},
        {"name": "513x1021", "ROWS": 513, "COLS": 1021},
    ],
    "gpu": [
        {"name": "8192x4096", "ROWS": 8192, "COLS": 4096},
        {"name": "4093x1021", "ROWS": 4093, "COLS": 1021},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return []
