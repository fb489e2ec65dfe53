"""References of row programs in KernelBench's contract, at odd sizes, for the feature tests."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet

from agent.features import cuda_pool, cuda_turned
from agent.features.planner import plan
from agent.features.program import Plan
from agent.features.proposer import FeatureProposer
from sandbox.graph import trace_all
from sandbox.types import Shape, Task

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
ROWS, COLS = 37, 131
class Model(nn.Module):
    def __init__(self, cols: int):
        super(Model, self).__init__()
        self.norm = nn.LayerNorm(cols)
        self.bias = nn.Parameter(torch.rand(cols))
        self.register_buffer("scale", torch.rand(1))
    def forward(self, x, y, t):
        return {body}
def get_inputs():
    rows = (ROWS, COLS)
    return [torch.randn(rows), torch.randn(rows), torch.randint(0, COLS, (ROWS,))]
def get_init_inputs():
    return [COLS]
"""
BODIES = {
    "sigmoid": "torch.sigmoid(x)",
    "relu": "F.relu(x)",
    "gelu_bias": "F.gelu(x + self.bias) * self.scale + F.gelu(y, approximate='tanh')",
    "layer_norm": "self.norm(x)",
    "layer_norm_residual": "F.silu(self.norm(x + y))",
    "rms_norm": "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.bias",
    "softmax": "torch.softmax(x, dim=-1)",
    "softmax_of_squares": "torch.softmax(torch.square(x), dim=-1)",
    "log_softmax": "F.log_softmax(x, dim=1)",
    "log_sum_exp": "torch.logsumexp(x, -1)",
    "cross_entropy": "F.cross_entropy(x, t)",
    "mse": "F.mse_loss(x, y)",
    "huber": "F.huber_loss(x, y)",
    "dot": "torch.dot(x.flatten(), y.flatten())",
    "row_sum": "x.sum(-1)",
    "row_extremes": "(x.amax(-1), x.amin(-1, keepdim=True), torch.var(x, -1))",
    "frobenius": "x / torch.norm(x)",
    "l2_normalise": "F.normalize(x, dim=-1)",
    "cosine": "1 - F.cosine_similarity(x, y, dim=1).mean()",
    "activations": "F.elu(F.leaky_relu(x)) + F.softplus(y) + F.hardtanh(x) + F.mish(y)",
    "transposed": "(x.t().contiguous(), (torch.sigmoid(y.t()) * x.t() + t).contiguous())",
    "prefix": "torch.cumsum(torch.relu(x) * self.bias, dim=-1) * 0.5 + y",
    "prefix_counts": "((x > 0).long().cumsum(1) * 1.0, x.cumsum(-1) / x.abs().sum(-1, True))",
    "scores": "torch.softmax(x @ y.t() / 11.0, dim=-1)",
    "constant": "torch.min(x, torch.tensor(0.25)) * torch.tensor(2) + torch.tensor(True)",
    "comparison": "torch.where(x > y, x.abs(), y.clamp(-0.5, 0.5)) * (t > 3).unsqueeze(1)",
}
NAMES = (*BODIES, "swiglu")
QUICK = ("gelu_bias", "softmax", "layer_norm", "cross_entropy", "mse", "swiglu")


def shared(names: Sequence[str]) -> list[ParameterSet]:
    """One of each kind in the quick tests, the others in the long ones."""
    return [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in names]


SWIGLU = """
import torch, torch.nn as nn, torch.nn.functional as F
ROWS, COLS = 37, 262
class Model(nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
def get_inputs():
    return [torch.randn(ROWS, COLS)]
def get_init_inputs():
    return []
"""
NORMS = """
import torch, torch.nn as nn, torch.nn.functional as F
N, SIDE = 3, 5
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = {norm}
        self.convolution = nn.Conv2d(12, 12, 3, padding=1)
        self.bias = nn.Parameter(torch.randn(12, 1, 1))
    def forward(self, x, rows):
        return {body}
def get_inputs():
    return [torch.randn(N, 12, SIDE, SIDE + 2) * 2 + 1, torch.randn(N, 12)]
def get_init_inputs():
    return []
"""
GROUPED = {
    "groups": ("nn.GroupNorm(4, 12)", "F.silu(self.norm(x))", 2),
    "groups without figures": ("nn.GroupNorm(2, 12, affine=False)", "F.relu(self.norm(x))", 1),
    "one group": ("nn.GroupNorm(1, 12)", "self.norm(x) + x", 2),
    "a group a channel": ("nn.GroupNorm(12, 12)", "self.norm(x) * self.bias", 2),
    "groups of a row": ("nn.GroupNorm(3, 12)", "F.hardtanh(self.norm(rows))", 1),
    "groups, then a mean": ("nn.GroupNorm(4, 12)", "self.norm(x).mean(dim=(1, 2, 3))", 3),
    "groups of a product": ("nn.GroupNorm(4, 12)", "F.gelu(self.norm(self.convolution(x)))", 2),
    "instances": ("nn.InstanceNorm2d(12)", "torch.tanh(self.norm(x)) * 0.5", 1),
}
"""What normalises, what is returned, and the programs that it takes."""
LEARNING = {
    "batch": ("nn.BatchNorm2d(12)", "self.norm(x)", 3),
    "batch of a product": ("nn.BatchNorm2d(12)", "torch.tanh(self.norm(self.convolution(x)))", 3),
    "batch, then a pooling": (
        "nn.BatchNorm2d(12, momentum=0.3)",
        "F.avg_pool2d(self.norm(x), 2)",
        4,
    ),
    "batch of vectors": ("nn.BatchNorm1d(12)", "F.gelu(self.norm(rows * 2.0))", 3),
    "batch within a network": (
        "nn.BatchNorm2d(12)",
        "torch.relu(self.convolution(F.relu(self.norm(self.convolution(x)), True)) + x)",
        4,
    ),
    "batch without scale": ("nn.BatchNorm2d(12, affine=False)", "self.norm(x) * self.bias", 3),
}
"""What normalises by a batch's figures and leaves running ones in buffers, as in GROUPED."""
CHAINED = {
    "two layers": ("F.hardtanh(self.norm(F.silu(self.norm(rows)))) * 0.5", 2),
    "images": (
        "F.max_pool2d(torch.relu(self.convolution(torch.tanh(self.convolution(x)))), 2)",
        2,
    ),
    "a residual": ("torch.relu(self.convolution(torch.relu(self.convolution(x))) + x)", 2),
    "a value that is read twice": (
        "(lambda y: torch.relu(self.convolution(y) + y))(F.avg_pool2d(x, 3, 1, 1))",
        2,
    ),
    "one that nothing follows": ("self.convolution(F.elu(self.convolution(x)))", 2),
    "of a product": ("torch.relu(F.conv2d(F.conv2d(x, self.norm.weight[:, :, None, None]), w))", 1),
    "changed in place": (
        "self.convolution(F.relu6(self.convolution(x), inplace=True)).add_(x)",
        2,
    ),
    "of a reduction": ("torch.sigmoid(self.norm(x.mean((2, 3)))) + 1.0", 2),
    "of a softmax": (
        "torch.relu(torch.softmax(rows @ self.norm.weight, -1) @ self.norm.weight)",
        2,
    ),
    "of two": ("torch.relu(F.gelu(rows) @ F.silu(self.norm.weight).t())", 3),
}
"""Products of what is computed, and the programs that these take."""
STRIDED = {
    "sum": ("x.sum(1)", 1),
    "rms norm": ("x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * self.bias", 1),
    "softmax": ("torch.softmax(x * self.bias, dim=1) + 0.5", 1),
    "two dimensions": ("x.mean((1, 2))", 1),
    "the first": ("x.amax(0) * 2.0", 1),
    "one after the other": ("F.log_softmax(x.amin(2), dim=1)", 2),
    "of a product": ("torch.tanh(self.convolution(x).amin(dim=1, keepdim=True))", 1),
}
"""Reductions along a dimension that is not the last, and the programs that they take."""
POOLED = {
    "largest": ("F.max_pool2d(x, 2)", 1),
    "windows that overlap": (
        "F.silu(F.max_pool2d(torch.relu(x * self.bias) - 1.0, 3, stride=2, padding=1))",
        1,
    ),
    "windows with gaps": ("F.max_pool2d(x, (2, 3), stride=1, dilation=(3, 2))", 1),
    "average": ("F.avg_pool2d(x - 0.5, 3, stride=1, padding=1) * self.bias", 1),
    "one dimension": ("F.avg_pool1d(rows.unsqueeze(1), 4, padding=1).squeeze(1) + 1.0", 1),
    "three dimensions": ("F.max_pool3d(x, 3, stride=2, padding=1)", 1),
    "average of three": ("F.avg_pool3d(x, (4, 2, 3), stride=(4, 1, 2), padding=(0, 0, 1))", 1),
    "of a product": ("F.max_pool2d(torch.tanh(self.convolution(x)), 2)", 1),
    "then a mean": ("torch.tanh(F.hardtanh(F.max_pool2d(x, 2)).mean((2, 3), True))", 2),
    "twice": ("F.max_pool2d(F.max_pool2d(x, 2, stride=1), 2)", 2),
    "of a softmax": ("F.avg_pool2d(torch.softmax(x, dim=1), 2)", 2),
    "of groups": ("F.max_pool2d(F.group_norm(x, 4), 2).clamp(0.0, 1.0)", 2),
}
"""Poolings, and the programs that they take."""
SHAPES = (
    Shape("odd"),
    Shape("even", (("ROWS", 6), ("COLS", 512))),
    Shape("long", (("ROWS", 2), ("COLS", 5000))),
)

BOUNDS = {"float32": 5e-6, "bfloat16": 4e-3, "float16": 1e-3}
"""Of the worst error of generated CUDA, by the task's dtype."""


def task(name: str, device: str = "cpu", dtype: str = "float32") -> Task:
    """The named reference at three shapes."""
    source = SWIGLU if name == "swiglu" else HEAD.format(body=BODIES[name])
    return Task(f"test/{name}", source, device, dtype, SHAPES)


def grouped(name: str, device: str = "cpu") -> Task:
    """The named reference at two shapes."""
    norm, body, _ = GROUPED[name]
    return image(name, norm, body, device)


def learning(name: str, device: str = "cuda") -> Task:
    """The named reference at two shapes."""
    norm, body, _ = LEARNING[name]
    shapes = (Shape("one", (("N", 12),)), Shape("other", (("N", 20), ("SIDE", 9))))
    return replace(image(name, norm, body, device), shapes=shapes)


def chained(name: str, device: str = "cuda") -> Task:
    """The named reference at two shapes."""
    body = CHAINED[name][0].replace(", w)", ", self.convolution.weight, padding=1)")
    return image(name, "nn.Linear(12, 12)", body, device)


def strided(name: str, device: str = "cuda") -> Task:
    """The named reference at two shapes."""
    return image(name, "nn.Identity()", STRIDED[name][0], device)


def pooled(name: str, device: str = "cuda") -> Task:
    """The named reference at two shapes."""
    return image(name, "nn.Identity()", POOLED[name][0], device)


def image(name: str, norm: str, body: str, device: str) -> Task:
    shapes = (Shape("one"), Shape("other", (("N", 5), ("SIDE", 9))))
    return Task(f"test/{name}", NORMS.format(norm=norm, body=body), device, shapes=shapes)


@functools.cache
def traced(problem: Task) -> Plan:
    """Its plan; a trace starts an interpreter, so the tests share them."""
    return plan(trace_all(problem))


def cuda_points(found: Plan, count: int) -> list[dict[str, str | int]]:
    """The default and a seeded spread of the pool over both forms."""
    program = found.programs[found.main]
    start, rng = cuda_pool.default(program), random.Random(1)
    spread = [start]
    pool = cuda_pool.pool(program)
    if pool is not cuda_pool.POOL:
        every = [
            dict(zip(pool, values, strict=True)) for values in itertools.product(*pool.values())
        ]
        fitting = [p for p in every if not program.inner or cuda_turned.fits(program, p)]
        return spread + rng.sample(fitting, count - 1)
    while len(spread) < count:
        point = {feature: rng.choice(values) for feature, values in cuda_pool.POOL.items()}
        point["form"] = ("rows", "tiles")[len(spread) % 2]
        point["threads"] = rng.choice((8, 32, 64, 128))
        point["groups"] = 1 if point["form"] == "tiles" else point["groups"]
        if cuda_pool.fits(program, point):
            spread.append(point)
    return spread


@functools.cache
def proposer(seed: int = 0) -> FeatureProposer:
    """Shared for its cache of traces: a proposer depends on nothing but its arguments."""
    return FeatureProposer(seed)


def worst_error(task: Task, candidate: dict[str, Any], device: str = "cpu") -> float:
    """Largest ||out - truth|| / ||truth|| over shapes and outputs, against float64; modules and
    inputs are made on the CPU and moved there.
    """
    worst, dtype = 0.0, getattr(torch, task.dtype)
    for shape in task.shapes:
        reference: dict[str, Any] = {}
        exec(task.source, reference)
        reference.update(dict(shape.constants))
        torch.manual_seed(0)
        arguments = reference["get_init_inputs"]()
        truth = reference["Model"](*arguments).to(device, dtype)
        model = candidate["ModelNew"](*arguments).to(device, dtype)
        for parameter in truth.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        model.load_state_dict(truth.state_dict())
        inputs = [_cast(value, dtype).to(device) for value in reference["get_inputs"]()]
        with torch.no_grad():
            found = model(*inputs)
            plain = truth(*inputs)
            for left, right in zip(model.buffers(), truth.buffers(), strict=True):
                torch.testing.assert_close(left, right, rtol=2e-5, atol=1e-6)
            expected = truth.double()(*(_cast(value, torch.float64) for value in inputs))
        for out, kind, right in zip(*map(_leaves, (found, plain, expected)), strict=True):
            assert (out.shape, out.dtype) == (kind.shape, kind.dtype)
            worst = max(worst, float((out.double() - right).norm() / right.norm()))
    return worst


def _cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype) if value.is_floating_point() else value


def _leaves(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple) else [value]
