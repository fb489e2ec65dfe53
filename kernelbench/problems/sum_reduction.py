"""Sum of every row.

x (ROWS, COLS) -> (ROWS,), float32.
Expected bound: memory, each element read once.
"""

import torch
from torch import nn

ROWS = 8192
COLS = 8192
SHAPES = {
    "cpu": [
        {"name": "2048x2048", "ROWS": 2048, "COLS": 2048},
        {"name": "129x4099", "ROWS": 129, "COLS": 4099},
    ],
    "gpu": [
        {"name": "8192x8192", "ROWS": 8192, "COLS": 8192},
        {"name": "1023x16411", "ROWS": 1023, "COLS": 16411},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return []
