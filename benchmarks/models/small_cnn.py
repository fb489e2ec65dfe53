"""A small CNN as somebody would write it: a stem, residual blocks, a pooled classifier."""

import torch
from torch import nn

BATCH, SIZE, CHANNELS = (64, 128, 64) if torch.cuda.is_available() else (8, 64, 16)
BLOCKS, CLASSES = 2, 10


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        y = self.act(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x
        return self.act(y)


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.SiLU(inplace=True),
        )
        self.blocks = nn.ModuleList(Block(CHANNELS) for _ in range(BLOCKS))
        self.head = nn.Linear(CHANNELS, CLASSES)
        self.drop = nn.Dropout(0.2)

    def forward(self, images):  # (batch, 3, height, width)
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return torch.log_softmax(self.head(self.drop(x.mean((2, 3)))), dim=-1)


def make_model():
    return SmallCNN()


def get_inputs():
    return [torch.randn(BATCH, 3, SIZE, SIZE)]
