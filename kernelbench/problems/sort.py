"""Values of every row in ascending order.

x (ROWS, COLS) -> (ROWS, COLS), float32.
Expected bound: memory, at several passes over the data for a radix sort.
"""

import torch
from torch import nn

ROWS = 1024
COLS = 16384
SHAPES = {
    "cpu": [
        {"name": "32x1024", "ROWS": 32, "COLS": 1024},
        {"name": "13x777", "ROWS": 13, "COLS": 777},
    ],
    "gpu": [
        {"name": "1024x16384", "ROWS": 1024, "COLS": 16384},
        {"name": "257x10007", "ROWS": 257, "COLS": 10007},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(x, dim=-1).values


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return []
