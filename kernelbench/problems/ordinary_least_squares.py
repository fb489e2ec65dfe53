"""Coefficients of a linear regression, by the normal equations and a Cholesky factor.

x (SAMPLES, FEATURES), y (SAMPLES,) -> (FEATURES,), float32, TF32 refused: the normal equations
square the condition number.
Expected bound: memory, x read once while its Gram matrix is accumulated; the solve is tiny.
"""

import torch
from torch import nn

SAMPLES = 1048576
FEATURES = 64
EXACT_FLOAT32 = True
SHAPES = {
    "cpu": [
        {"name": "32768x32", "SAMPLES": 32768, "FEATURES": 32},
        {"name": "3001x17", "SAMPLES": 3001, "FEATURES": 17},
    ],
    "gpu": [
        {"name": "1048576x64", "SAMPLES": 1048576, "FEATURES": 64},
        {"name": "100003x33", "SAMPLES": 100003, "FEATURES": 33},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        gram = x.t() @ x  # (FEATURES, FEATURES)
        moment = x.t() @ y[:, None]  # (FEATURES, 1)
        return torch.cholesky_solve(moment, torch.linalg.cholesky_ex(gram).L)[:, 0]


def get_inputs() -> list[torch.Tensor]:
    x = torch.randn(SAMPLES, FEATURES)
    # A true relation plus noise: the coefficients of an unrelated y are nearly zero.
    return [x, x @ torch.randn(FEATURES) + torch.randn(SAMPLES)]


def get_init_inputs() -> list[int]:
    return []
