"""Dot product of each pair of rows.

a, b (ROWS, COLS) -> (ROWS,), float32.
Expected bound: memory, two reads per element; eager writes the products in between.
"""

import torch
from torch import nn

ROWS = 4096
COLS = 8192
SHAPES = {
    "cpu": [
        {"name": "2048x1024", "ROWS": 2048, "COLS": 1024},
        {"name": "129x1027", "ROWS": 129, "COLS": 1027},
    ],
    "gpu": [
        {"name": "4096x8192", "ROWS": 4096, "COLS": 8192},
        {"name": "1023x4099", "ROWS": 1023, "COLS": 4099},
    ],
}


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vecdot(a, b)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return []
