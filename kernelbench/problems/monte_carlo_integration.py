"""Monte Carlo integrals of exp(-x^2) cos(x), one for each interval, from samples given as input.

samples (INTEGRALS, SAMPLES) in [0, 1), low and width (INTEGRALS,) -> (INTEGRALS,), float32:
width times the mean of the integrand at low + width * samples.
Expected bound: memory, each sample read once; eager writes every step in between.
"""

import torch
from torch import nn

INTEGRALS = 4096
SAMPLES = 8192
SHAPES = {
    "cpu": [
        {"name": "256x2048", "INTEGRALS": 256, "SAMPLES": 2048},
        {"name": "33x1027", "INTEGRALS": 33, "SAMPLES": 1027},
    ],
    "gpu": [
        {"name": "4096x8192", "INTEGRALS": 4096, "SAMPLES": 8192},
        {"name": "1023x4099", "INTEGRALS": 1023, "SAMPLES": 4099},
    ],
}


class Model(nn.Module):
    def forward(
        self, samples: torch.Tensor, low: torch.Tensor, width: torch.Tensor
    ) -> torch.Tensor:
        x = low[:, None] + width[:, None] * samples
        return width * torch.mean(torch.exp(-x * x) * torch.cos(x), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    samples = torch.rand(INTEGRALS, SAMPLES)
    return [samples, torch.randn(INTEGRALS), 0.5 + 2.0 * torch.rand(INTEGRALS)]


def get_init_inputs() -> list[int]:
    return []
