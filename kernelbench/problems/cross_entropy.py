"""Cross-entropy loss of each row of logits, not averaged.

logits (ROWS, CLASSES) float32, targets (ROWS,) int64 -> (ROWS,), float32.
Expected bound: memory, each logit read once; eager writes all log-probabilities in between.
"""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 2048
CLASSES = 32000
SHAPES = {
    "cpu": [
        {"name": "512x4096", "ROWS": 512, "CLASSES": 4096},
        {"name": "33x1027", "ROWS": 33, "CLASSES": 1027},
    ],
    "gpu": [
        {"name": "2048x32000", "ROWS": 2048, "CLASSES": 32000},
        {"name": "333x50257", "ROWS": 333, "CLASSES": 50257},
    ],
}


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets, reduction="none")


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))]


def get_init_inputs() -> list[int]:
    return []
