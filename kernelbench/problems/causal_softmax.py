"""Scaled and causally masked softmax of attention scores.

scores (HEADS, SEQUENCE, SEQUENCE) -> the same shape, float32; key j > query i has weight zero.
Expected bound: memory, and the masked half need not be read; eager makes three passes.
"""

import torch
from torch import nn

HEADS = 16
SEQUENCE = 1536
SCALE = 0.5
SHAPES = {
    "cpu": [
        {"name": "12x256", "HEADS": 12, "SEQUENCE": 256},
        {"name": "3x131", "HEADS": 3, "SEQUENCE": 131},
    ],
    "gpu": [
        {"name": "16x1536", "HEADS": 16, "SEQUENCE": 1536},
        {"name": "5x509", "HEADS": 5, "SEQUENCE": 509},
    ],
}


class Model(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        position = torch.arange(scores.shape[-1], device=scores.device)
        future = position[None, :] > position[:, None]  # (SEQUENCE, SEQUENCE) bool
        return torch.softmax((scores * self.scale).masked_fill(future, float("-inf")), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [4.0 * torch.randn(HEADS, SEQUENCE, SEQUENCE)]


def get_init_inputs() -> list[float]:
    return [SCALE]
