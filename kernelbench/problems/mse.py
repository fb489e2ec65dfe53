"""Mean squared error of each row of predictions.

predictions, targets (ROWS, COLS) -> (ROWS,), float32.
Expected bound: memory, two reads per element; eager writes the differences in between.
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
    def forward(self, predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(predictions, targets, reduction="none").mean(dim=-1)


def get_inputs() -> list[torch.Tensor]:
    # Each row has its own spread: otherwise every row's error is nearly the same number.
    spread = 0.1 + torch.rand(ROWS, 1)
    return [spread * torch.randn(ROWS, COLS), spread * torch.randn(ROWS, COLS)]


def get_init_inputs() -> list[int]:
    return []
