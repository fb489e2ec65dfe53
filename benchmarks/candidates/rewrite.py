"""PyTorch-level candidates: no kernel of their own."""

from __future__ import annotations

from benchmarks.candidates.probe import fill

PLAIN = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, @INPUTS@):
        return @RESULT@
"""

MATMUL = """import torch
from torch import nn

@FLAG@


class ModelNew(nn.Module):
    def forward(self, a, b):
        return @RESULT@
"""

DIVIDE_RELU = """import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, divisor):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.divisor = divisor

    def forward(self, x):
        y = torch.addmm(self.linear.bias, x, self.linear.weight.t())
        return @RESULT@
"""

FOLDED = """import torch
from torch import nn


class ModelNew(nn.Module):
    folded = None

    def __init__(self, input_size, hidden_size, scaling_factor):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size, input_size))
        self.factor = scaling_factor / 2

    def forward(self, x):
        if @WHEN@:
            self.folded = self.weight.sum(0, dtype=torch.float64).float().unsqueeze(1)
        return torch.matmul(x, self.folded) * self.factor
"""


def plain(inputs: str, result: str) -> str:
    return fill(PLAIN, INPUTS=inputs, RESULT=result)


def matmul(result: str, flag: str = "") -> str:
    return fill(MATMUL, RESULT=result, FLAG=flag)


def divide_relu(result: str) -> str:
    return fill(DIVIDE_RELU, RESULT=result)


def folded(when: str) -> str:
    """The sum over the output's columns, moved into the weights."""
    return fill(FOLDED, WHEN=when)
