"""Rotary position embedding, half-split layout (Su et al. 2021, as in Llama).

x (BATCH, HEADS, SEQUENCE, DIM), cos and sin (SEQUENCE, DIM) -> the shape of x; bfloat16 on the GPU.
Expected bound: memory, each element of x read once and written once; eager makes several passes.
"""

import torch
from torch import nn

BATCH = 4
HEADS = 32
SEQUENCE = 4096
DIM = 128
DTYPE = {"gpu": "bfloat16", "cpu": "float32"}
SHAPES = {
    "cpu": [
        {"name": "4x8x512x64", "BATCH": 4, "HEADS": 8, "SEQUENCE": 512, "DIM": 64},
        {"name": "3x5x131x40", "BATCH": 3, "HEADS": 5, "SEQUENCE": 131, "DIM": 40},
    ],
    "gpu": [
        {"name": "4x32x4096x128", "BATCH": 4, "HEADS": 32, "SEQUENCE": 4096, "DIM": 128},
        {"name": "3x5x1021x80", "BATCH": 3, "HEADS": 5, "SEQUENCE": 1021, "DIM": 80},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin


def get_inputs() -> list[torch.Tensor]:
    frequency = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)  # (DIM / 2,)
    angle = torch.outer(torch.arange(SEQUENCE), frequency).repeat(1, 2)  # (SEQUENCE, DIM)
    return [torch.randn(BATCH, HEADS, SEQUENCE, DIM), angle.cos(), angle.sin()]


def get_init_inputs() -> list[int]:
    return []
