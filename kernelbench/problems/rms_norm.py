"""Root-mean-square normalisation of every row, with scale (Zhang and Sennrich 2019).

x (ROWS, COLS), weight (COLS,) -> (ROWS, COLS); bfloat16 on the GPU.
Expected bound: memory, each element read once and written once.
"""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 16384
COLS = 4096
DTYPE = {"gpu": "bfloat16", "cpu": "float32"}
SHAPES = {
    "cpu": [
        {"name": "2048x1024", "ROWS": 2048, "COLS": 1024},
        {"name": "129x771", "ROWS": 129, "COLS": 771},
    ],
    "gpu": [
        {"name": "16384x4096", "ROWS": 16384, "COLS": 4096},
        {"name": "1023x1537", "ROWS": 1023, "COLS": 1537},
    ],
}


class Model(nn.Module):
    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, eps=1e-6)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return [COLS]
