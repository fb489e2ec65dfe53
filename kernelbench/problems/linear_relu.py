"""Linear layer with bias, then ReLU.

x (ROWS, INPUTS), weight (OUTPUTS, INPUTS), bias (OUTPUTS,) -> (ROWS, OUTPUTS); bfloat16 on the GPU.
Expected bound: compute, on tensor cores; bias and ReLU belong in the epilogue.
"""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 4096
INPUTS = 4096
OUTPUTS = 4096
DTYPE = {"gpu": "bfloat16", "cpu": "float32"}
SHAPES = {
    "cpu": [
        {"name": "256x512x256", "ROWS": 256, "INPUTS": 512, "OUTPUTS": 256},
        {"name": "127x250x131", "ROWS": 127, "INPUTS": 250, "OUTPUTS": 131},
    ],
    "gpu": [
        {"name": "4096x4096x4096", "ROWS": 4096, "INPUTS": 4096, "OUTPUTS": 4096},
        {"name": "1003x1531x777", "ROWS": 1003, "INPUTS": 1531, "OUTPUTS": 777},
    ],
}


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.linear(x, self.weight, self.bias))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, INPUTS)]


def get_init_inputs() -> list[int]:
    return [INPUTS, OUTPUTS]
