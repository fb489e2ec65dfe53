"""A transformer block as somebody would write it: RMS norms, attention, a gated MLP."""

import torch
from torch import nn
from torch.nn import functional as F

GPU = torch.cuda.is_available()
BATCH, TOKENS, WIDTH, HEADS, HIDDEN = (32, 1024, 1024, 16, 4096) if GPU else (16, 256, 128, 4, 512)
DTYPE = torch.bfloat16 if GPU else torch.float32  # as it is run


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):  # (batch, tokens, width)
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class GatedMLP(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x), approximate="tanh") * self.up(x))


class Model(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = GatedMLP(width, hidden)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def make_model():
    return Model(WIDTH, HEADS, HIDDEN).to(DTYPE)


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH, dtype=DTYPE)]
