"""Bias addition, then exact GELU (by the error function).

x (ROWS, COLS), bias (COLS,) -> (ROWS, COLS); float16 on the GPU.
Expected bound: memory, one read and one write per element once fused; eager makes two passes.
"""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 16384
COLS = 4096
DTYPE = {"gpu": "float16", "cpu": "float32"}
SHAPES = {
    "cpu": [
        {"name": "1536x1024", "ROWS": 1536, "COLS": 1024},
        {"name": "129x1021", "ROWS": 129, "COLS": 1021},
    ],
    "gpu": [
        {"name": "16384x4096", "ROWS": 16384, "COLS": 4096},
        {"name": "4093x1021", "ROWS": 4093, "COLS": 1021},
    ],
}


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x + self.bias)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return [COLS]
