"""SwiGLU gate: SiLU of the first half of each row times the second half (Shazeer 2020).

x (ROWS, 2 * HIDDEN) -> (ROWS, HIDDEN); bfloat16 on the GPU.
Expected bound: memory, two reads and one write per output once fused; eager makes two passes.
"""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 8192
HIDDEN = 8192
DTYPE = {"gpu": "bfloat16", "cpu": "float32"}
SHAPES = {
    "cpu": [
        {"name": "1280x1024", "ROWS": 1280, "HIDDEN": 1024},
        {"name": "129x771", "ROWS": 129, "HIDDEN": 771},
    ],
    "gpu": [
        {"name": "8192x8192", "ROWS": 8192, "HIDDEN": 8192},
        {"name": "1023x5461", "ROWS": 1023, "HIDDEN": 5461},
    ],
}


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, 2 * HIDDEN)]


def get_init_inputs() -> list[int]:
    return []
