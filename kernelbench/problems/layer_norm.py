"""Layer normalisation of every row, with scale and shift.

x (ROWS, COLS), weight (COLS,), bias (COLS,) -> (ROWS, COLS), float32; variance is biased.
Expected bound: memory, each element read once and written once.
"""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 8192
COLS = 4096
SHAPES = {
    "cpu": [
        {"name": "2048x1024", "ROWS": 2048, "COLS": 1024},
        {"name": "129x771", "ROWS": 129, "COLS": 771},
    ],
    "gpu": [
        {"name": "8192x4096", "ROWS": 8192, "COLS": 4096},
        {"name": "1023x1537", "ROWS": 1023, "COLS": 1537},
    ],
}


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.bias = nn.Parameter(torch.zeros(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, eps=1e-5)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return [COLS]
