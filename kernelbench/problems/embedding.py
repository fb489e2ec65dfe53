"""Rows of an embedding table, gathered by token.

tokens (TOKENS,) int64, weight (VOCABULARY, DIM) -> (TOKENS, DIM), float32.
Expected bound: memory, one read and one write per output; repeated tokens hit the L2 cache.
"""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS = 32768
VOCABULARY = 50000
DIM = 1024
SHAPES = {
    "cpu": [
        {"name": "6144x2048x256", "TOKENS": 6144, "VOCABULARY": 2048, "DIM": 256},
        {"name": "1021x503x77", "TOKENS": 1021, "VOCABULARY": 503, "DIM": 77},
    ],
    "gpu": [
        {"name": "32768x50000x1024", "TOKENS": 32768, "VOCABULARY": 50000, "DIM": 1024},
        {"name": "1021x5003x333", "TOKENS": 1021, "VOCABULARY": 5003, "DIM": 333},
    ],
}


class Model(nn.Module):
    def __init__(self, vocabulary: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, dim))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.weight)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randint(0, VOCABULARY, (TOKENS,))]


def get_init_inputs() -> list[int]:
    return [VOCABULARY, DIM]
