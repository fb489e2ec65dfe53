"""Logarithm of the softmax of every row.

x (ROWS, COLS) -> (ROWS, COLS), float32.
Expected bound: memory, each element read once and written once where a row fits on chip.
"""

import torch
from torch import nn

ROWS = 4096
COLS = 8192
SHAPES = {
    "cpu": [
        {"name": "2048x1024", "ROWS": 2048, "COLS": 1024},
        {"name": "129x771", "ROWS": 129, "COLS": 771},
    ],
    "gpu": [
        {"name": "4096x8192", "ROWS": 4096, "COLS": 8192},
        {"name": "1023x1537", "ROWS": 1023, "COLS": 1537},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(x, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return []
