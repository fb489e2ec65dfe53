"""A region as a task file: a self-contained problem in KernelBench's contract.

Parameters and buffers of the model that the region reads are the new Model's own; everything else
that comes in is an argument of forward. The text depends on the graph and on what was captured, not
on names in the user's model: equal regions are equal texts.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from agent.export.runtime.graphs import base_name, functional, writes
from agent.extraction.figures import Sample
from agent.extraction.regions import Kind, Region, kind_of
from agent.extraction.samples import draw
from kernelbench.problem import DTYPES

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
METHODS = {"view", "expand", "masked_fill", "type_as", "to", "contiguous"}
FUNCTIONAL = {
    "linear": 3, "gelu": 2, "silu": 1, "leaky_relu": 2, "mish": 1, "hardswish": 1,
    "hardsigmoid": 1, "relu6": 1, "softplus": 3, "elu": 2, "logsigmoid": 1, "layer_norm": 5,
    "group_norm": 5, "scaled_dot_product_attention": 6, "hardtanh": 3, "glu": 2,
    "adaptive_avg_pool2d": 2, "avg_pool2d": 7, "max_pool2d": 6, "embedding": -1,
}  # fmt: skip
"""torch.nn.functional's names whose first so many arguments are ATen's; -1: none."""
PLAIN = {
    "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "neg", "pow",
    "square", "sin", "cos", "erf", "where", "clamp", "clamp_min", "clamp_max", "maximum", "minimum",
    "mean", "sum", "var", "std", "amax", "amin", "softmax", "log_softmax", "matmul", "mm", "bmm",
    "addmm", "baddbmm", "conv1d", "conv2d", "conv3d", "cat", "stack", "permute", "transpose",
    "reshape", "flatten", "unsqueeze", "squeeze", "select", "chunk", "unbind", "split", "cumsum",
    "logsumexp", "add", "sub", "mul", "div", "expm1", "log1p", "floor", "ceil", "round", "sign",
    "logical_not", "logical_and", "logical_or", "gt", "ge", "lt", "le", "eq", "ne", "addcmul",
    "addcdiv", "lerp", "argmax", "argmin", "gather", "rms_norm", "full_like", "zeros_like",
    "ones_like", "tril", "triu",
}  # fmt: skip
"""Names of torch with ATen's arguments."""
HEAD = '''"""{title}

{about}
"""

import torch
from torch import nn
{functional}{dtype}

class Model(nn.Module):
'''


class Inexpressible(Exception):
    """The region cannot be a task; the message says why."""


@dataclass(frozen=True)
class Skeleton:
    """A task file without the values of its inputs."""

    region: Region
    local: Mapping[fx.Node, str]
    """Python names."""
    state: tuple[fx.Node, ...]
    """The region's inputs that become parameters and buffers, in registration order."""
    parameters: frozenset[fx.Node]
    arguments: tuple[fx.Node, ...]
    """Those that are forward's arguments."""
    forward: tuple[str, ...]
    dtype: str

    @property
    def key(self) -> str:
        """Equal for regions with the same graph, shapes, dtypes and strides."""
        inputs = [_signature(n) for n in (*self.arguments, *self.state)]
        kinds = ["parameter" if n in self.parameters else "buffer" for n in self.state]
        return "\n".join([*inputs, *kinds, *self.forward])


def skeleton(
    region: Region,
    names: Mapping[fx.Node, str],
    parameters: frozenset[fx.Node],
    *,
    plain: bool = False,
) -> Skeleton:
    """`names` are the dotted ones of state, `parameters` those of it with gradients.

    `plain` spells every operator as torch.ops does, for those whose public function differs. Raises
    Inexpressible.
    """
    state = tuple(n for n in region.inputs if n in names)
    arguments = tuple(n for n in region.inputs if n not in names)
    if not arguments:
        raise Inexpressible("it takes nothing but parameters")
    local = _locals(region, state, arguments, names)
    writer = _Writer(local, plain)
    body = [f"        {writer.line(node)}" for node in region.nodes]
    signature = ", ".join(["self", *(local[n] for n in arguments)])
    results = ", ".join(local[n] for n in region.outputs)
    forward = (f"    def forward({signature}):", *body, f"        return {results}")
    return Skeleton(region, local, state, parameters, arguments, forward, _dtype(region))


def write(found: Skeleton, samples: Mapping[fx.Node, Sample], occurrences: int = 1) -> str:
    """The task file's text, with inputs and state as they were sampled over the occurrences."""
    used = "\n".join(found.forward)
    head = HEAD.format(
        title=_title(found.region),
        about="\n".join(_about(found, samples, occurrences)),
        functional="from torch.nn import functional as F\n" if " F." in used else "",
        dtype="" if found.dtype == "float32" else f'\nDTYPE = "{found.dtype}"\n',
    )
    inputs = [f"        {draw(samples[n])}," for n in found.arguments]
    tail = ["def get_inputs():", "    return [", *inputs, "    ]", "", "", "def get_init_inputs():"]
    lines = [*_init(found, samples), *found.forward, "", "", *tail, "    return []", ""]
    return head + "\n".join(lines)


def _signature(node: fx.Node) -> str:
    tensor = node.meta["val"]
    return f"{tensor.dtype} {tuple(tensor.shape)} {tuple(tensor.stride())}"


def _dtype(region: Region) -> str:
    """The one floating dtype of all that goes in and out."""
    tensors = [n.meta.get("val") for n in (*region.inputs, *region.outputs)]
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        raise Inexpressible("it takes more than tensors")
    found = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()}
    if len(found) > 1:
        raise Inexpressible(f"it mixes {' and '.join(sorted(found))}")
    dtype = found.pop() if found else "float32"
    if dtype not in DTYPES:
        raise Inexpressible(f"it is in {dtype}; tasks are in {', '.join(DTYPES)}")
    return dtype


def _title(region: Region) -> str:
    words = [base_name(n).strip("_") for n in region.nodes if kind_of(n) is not Kind.VIEW]
    return f"{' -> '.join(words)}."


def _about(found: Skeleton, samples: Mapping[fx.Node, Sample], occurrences: int) -> list[str]:
    inputs = [*found.arguments, *found.state]
    where = "" if occurrences == 1 else f", {occurrences} occurrences together"
    told = [f"- {found.local[n].removeprefix('self.')}: {samples[n]}" for n in inputs]
    return [f"Captured from a model{where}:", *told]


def _locals(
    region: Region,
    state: Sequence[fx.Node],
    arguments: Sequence[fx.Node],
    names: Mapping[fx.Node, str],
) -> dict[fx.Node, str]:
    """Python names: `x0` of arguments, `self.weight` of state, `v0` of what is computed."""
    local = {node: f"x{i}" for i, node in enumerate(arguments)}
    taken: set[str] = set()
    for node in state:
        last = names[node].rpartition(".")[2]
        wanted = last if last.isidentifier() and not hasattr(torch.nn.Module, last) else "state"
        name, number = wanted, 1
        while name in taken:
            name, number = f"{wanted}_{number}", number + 1
        taken.add(name)
        local[node] = f"self.{name}"
    return local | {node: f"v{i}" for i, node in enumerate(region.nodes)}


def _init(found: Skeleton, samples: Mapping[fx.Node, Sample]) -> list[str]:
    if not found.state:
        return []
    lines = ["    def __init__(self):", "        super().__init__()"]
    for node in found.state:
        text, name = draw(samples[node]), found.local[node]
        if node in found.parameters and samples[node].floating:
            lines.append(f"        {name} = nn.Parameter({text})")
        else:
            lines.append(f'        self.register_buffer("{name.removeprefix("self.")}", {text})')
    return [*lines, ""]


class _Writer:
    """One line of Python for each node."""

    def __init__(self, local: Mapping[fx.Node, str], plain: bool) -> None:
        self.local, self.plain = local, plain

    def line(self, node: fx.Node) -> str:
        return f"{self.local[node]} = {self.call(node)}"

    def call(self, node: fx.Node) -> str:
        if node.target is operator.getitem:
            source, place = node.args
            return f"{self.value(source)}[{place}]"
        target = functional(node.target) if writes(node) else node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise Inexpressible(f"{target} is no operator of torch")
        name = base_name(node).removesuffix("_") if writes(node) else base_name(node)
        arguments = [self.value(a) for a in node.args]
        if not self.plain:
            readable = self.readable(name, node, arguments)
            if readable is not None:
                return readable
        named = [f"{k}={self.value(v)}" for k, v in node.kwargs.items()]
        overload = target._overloadname or "default"
        return f"torch.ops.{target.namespace}.{name}.{overload}({', '.join(arguments + named)})"

    def readable(self, name: str, node: fx.Node, arguments: list[str]) -> str | None:
        """With the public function of that name; None where there is none with these arguments."""
        named = [f"{k}={self.value(v)}" for k, v in node.kwargs.items()]
        if kind_of(node) is Kind.VIEW and name.endswith("dropout"):
            return arguments[0]
        if name in INFIX and len(arguments) == 2 and not named:
            return f" {INFIX[name]} ".join(arguments)
        if name == "batch_norm":
            x, weight, bias, mean, var, training, momentum, eps = arguments[:8]
            rest = f"{training}, {momentum}, {eps}"
            return f"F.batch_norm({x}, {mean}, {var}, {weight}, {bias}, {rest})"
        if name in METHODS:
            return f"{arguments[0]}.{name}({', '.join(arguments[1:] + named)})"
        if name in FUNCTIONAL:
            most = FUNCTIONAL[name]
            given = arguments[:most] if name in ("layer_norm", "group_norm") else arguments
            if len(given) > most:
                return None
            return f"F.{name}({', '.join(given + named)})"
        if name in PLAIN:
            return f"torch.{name}({', '.join(arguments + named)})"
        return None

    def value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self.local[value]
        if isinstance(value, list | tuple):
            inner = ", ".join(map(self.value, value))
            return f"[{inner}]"
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f"float('{value}')"
        if isinstance(value, torch.device):
            place = next((n for n in self.local.values() if n.startswith("x")), None)
            return repr(str(value.type)) if place is None else f"{place}.device"
        if value is None or isinstance(
            value, bool | int | float | str | torch.dtype | torch.memory_format | torch.layout
        ):
            return repr(value)
        raise Inexpressible(f"it has the constant {value!r}")
