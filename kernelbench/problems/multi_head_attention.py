"""Multi-head self-attention with its four projections, not causal (Vaswani et al. 2017).

x (BATCH, SEQUENCE, EMBED) -> (BATCH, SEQUENCE, EMBED); bfloat16 on the GPU. HEADS divides EMBED.
Expected bound: compute, on tensor cores; the scores must not go through global memory.
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 4
SEQUENCE = 2048
EMBED = 1024
HEADS = 16
DTYPE = {"gpu": "bfloat16", "cpu": "float32"}
SHAPES = {
    "cpu": [
        {"name": "2x128x128x4", "BATCH": 2, "SEQUENCE": 128, "EMBED": 128, "HEADS": 4},
        {"name": "3x37x96x6", "BATCH": 3, "SEQUENCE": 37, "EMBED": 96, "HEADS": 6},
    ],
    "gpu": [
        {"name": "4x2048x1024x16", "BATCH": 4, "SEQUENCE": 2048, "EMBED": 1024, "HEADS": 16},
        {"name": "3x509x768x12", "BATCH": 3, "SEQUENCE": 509, "EMBED": 768, "HEADS": 12},
    ],
}


class Model(nn.Module):
    def __init__(self, embed: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(embed, 3 * embed)
        self.out = nn.Linear(embed, embed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, embed = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, embed // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (BATCH, HEADS, SEQUENCE, EMBED / HEADS)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, sequence, embed))


def get_inputs() -> list[torch.Tensor]:
    # A spread of 4 makes attention prefer some keys: otherwise it is nearly their plain mean.
    return [4.0 * torch.randn(BATCH, SEQUENCE, EMBED)]


def get_init_inputs() -> list[int]:
    return [EMBED, HEADS]
