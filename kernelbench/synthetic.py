"""Synthetic tasks: compositions of one to five torch operators, told by a seed and a number.

After CUDA Agent's Ops-6K (arXiv 2602.24286, section 4.1), with a grammar in a language model's
place. `rows` composes what runs along the rows of a matrix; `any` adds products, scans and
transposes. Tasks whose composition another one has already are left out: constants, names and sizes
do not tell two apart. Whether a composition can be scored is the admission test's to say: the
grammar avoids only what is constant for certain.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from kernelbench.problem import make_task, parse_problem
from sandbox.errors import TaskError
from sandbox.types import Task, digest

SCHEME = "synthetic"
KINDS = ("rows", "any")
SPEC = re.compile(r"(?P<kind>rows|any):(?P<count>[1-9][0-9]*)(@(?P<seed>[0-9]+))?")
NAME = re.compile(r"synthetic/(?P<kind>rows|any)-(?P<seed>[0-9]+)-(?P<number>[0-9]+)")
FORM = "synthetic:rows:COUNT@SEED or synthetic:any:COUNT@SEED"
CONSTANTS = ("0.1", "0.25", "0.5", "1.5", "2.0", "3.0")
LENGTHS = ((1, 1), (2, 3), (3, 3), (4, 2), (5, 1))
"""Operators of a task, and how often that many."""
CPU_ROWS, CPU_COLUMNS = (128, 256, 512), (512, 1024, 2048)
GPU_ROWS, GPU_COLUMNS = (2048, 4096, 8192), (2048, 4096)
ODD = {"cpu": ((67, 1021), (129, 515)), "gpu": ((4093, 1021), (2049, 1531))}
"""Second sizes: rows and columns that no block size divides."""
GIVE_UP = 4000
"""Numbers without a new composition after which there are no more."""


@dataclass(frozen=True)
class Operator:
    name: str
    text: str
    """Of the running value `{a}`; `{c}` is a constant, `y` a second input."""
    needs: frozenset[str] = frozenset()
    """Of `y`, `scale`, `bias`, `weight`."""
    normalises: bool = False
    """Rows come out with a fixed sum, mean or size."""
    reduces: bool = False
    """The columns are gone; nothing follows."""
    rows: bool = True
    """Part of `rows`."""


def _operator(name: str, text: str, *needs: str, **what: bool) -> Operator:
    return Operator(name, text, frozenset(needs), **what)


POINTWISE = (
    _operator("tanh", "torch.tanh({a})"),
    _operator("sigmoid", "torch.sigmoid({a})"),
    _operator("relu", "torch.relu({a})"),
    _operator("silu", "F.silu({a})"),
    _operator("gelu", "F.gelu({a})"),
    _operator("gelu_tanh", 'F.gelu({a}, approximate="tanh")'),
    _operator("leaky_relu", "F.leaky_relu({a}, {c})"),
    _operator("abs", "torch.abs({a})"),
    _operator("sin", "torch.sin({a})"),
    _operator("square", "torch.square({a})"),
    _operator("log1p", "torch.log1p(torch.abs({a}))"),
    _operator("clamp", "torch.clamp({a}, -{c}, {c})"),
    _operator("times", "{a} * {c}"),
    _operator("plus", "{a} + {c}"),
    _operator("minus", "{a} - {c}"),
    _operator("add_y", "{a} + y", "y"),
    _operator("subtract_y", "{a} - y", "y"),
    _operator("times_y", "{a} * y", "y"),
    _operator("maximum_y", "torch.maximum({a}, y)", "y"),
    _operator("gate", "{a} * torch.sigmoid(y)", "y"),
    _operator("scale", "{a} * self.scale", "scale"),
    _operator("bias", "{a} + self.bias", "bias"),
)
ALONG_ROWS = (
    _operator("softmax", "torch.softmax({a}, dim=-1)", normalises=True),
    _operator("log_softmax", "torch.log_softmax({a}, dim=-1)", normalises=True),
    _operator("layer_norm", "F.layer_norm({a}, ({a}.shape[-1],))", normalises=True),
    _operator(
        "rms", "{a} * torch.rsqrt({a}.square().mean(dim=-1, keepdim=True) + 1e-6)", normalises=True
    ),
    _operator("centre", "{a} - {a}.mean(dim=-1, keepdim=True)", normalises=True),
    _operator("sum", "{a}.sum(dim=-1)", reduces=True),
    _operator("mean", "{a}.mean(dim=-1)", reduces=True),
    _operator("amax", "{a}.amax(dim=-1)", reduces=True),
)
OTHERS = (
    _operator("softplus", "F.softplus({a})", rows=False),
    _operator("matmul", "{a} @ self.weight", "weight", rows=False),
    _operator("cumsum", "torch.cumsum({a}, dim=-1)", rows=False),
    _operator("transpose", "{a}.transpose(0, 1).contiguous()", rows=False),
    _operator("flip", "torch.flip({a}, dims=(-1,))", rows=False),
)
IDEMPOTENT = {"relu", "abs", "clamp"}
PARAMETERS = {
    "scale": "self.scale = nn.Parameter(torch.ones(columns))",
    "bias": "self.bias = nn.Parameter(torch.zeros(columns))",
    "weight": "self.weight = nn.Parameter(torch.randn(columns, columns) / columns**0.5)",
}


def synthetic_tasks(spec: str, device: str, dtype: str | None) -> list[Task]:
    """Of `rows:COUNT@SEED`, in order; the first so many of a seed are the same for every COUNT."""
    kind, seed, numbers = _named(spec)
    return [_task(kind, seed, number, device, dtype) for number in numbers]


def synthetic_ids(spec: str) -> list[str]:
    """Of the same tasks, without composing them, which takes two thirds of the time."""
    kind, seed, numbers = _named(spec)
    return [_id(kind, seed, number) for number in numbers]


def _named(spec: str) -> tuple[str, int, Sequence[int]]:
    found = SPEC.fullmatch(spec)
    if found is None:
        raise TaskError(f"{SCHEME}:{spec} is no such suite; expected {FORM}")
    kind, seed = found["kind"], int(found["seed"] or 0)
    return kind, seed, _numbers(kind, seed, int(found["count"]))


def synthetic_task(task_id: str, device: str, dtype: str | None) -> Task | None:
    """The task of an id such as `synthetic/rows-0-17`; None for an id that is none of these."""
    found = NAME.fullmatch(task_id)
    if found is None:
        return None
    return _task(found["kind"], int(found["seed"]), int(found["number"]), device, dtype)


def compose(kind: str, seed: int, number: int) -> str:
    """One problem in KernelBench's contract with sizes for each device."""
    dice = random.Random(digest([SCHEME, kind, seed, number]))
    return _problem(_chain(kind, dice), dice)


@cache
def _numbers(kind: str, seed: int, count: int) -> tuple[int, ...]:
    """Of the first `count` tasks whose composition no earlier one has."""
    seen: set[tuple[str, ...]] = set()
    kept: list[int] = []
    number = 0
    while len(kept) < count:
        chain = _chain(kind, random.Random(digest([SCHEME, kind, seed, number])))
        names = tuple(operator.name for operator in chain)
        if names not in seen:
            seen.add(names)
            kept.append(number)
        elif number - kept[-1] > GIVE_UP:
            raise TaskError(f"{SCHEME}:{kind}: seed {seed} has {len(kept)} compositions, no more")
        number += 1
    return tuple(kept)


def _task(kind: str, seed: int, number: int, device: str, dtype: str | None) -> Task:
    task_id = _id(kind, seed, number)
    return make_task(task_id, parse_problem(compose(kind, seed, number), task_id), device, dtype)


def _id(kind: str, seed: int, number: int) -> str:
    return f"{SCHEME}/{kind}-{seed}-{number}"


def _chain(kind: str, dice: random.Random) -> list[Operator]:
    known = [*POINTWISE, *ALONG_ROWS, *ALONG_ROWS, *(OTHERS if kind == "any" else ())]
    lengths, weights = zip(*LENGTHS, strict=True)
    length = dice.choices(lengths, weights)[0]
    chain: list[Operator] = []
    while len(chain) < length:
        operator = dice.choice(known)
        if _follows(operator, chain):
            chain.append(operator)
            if operator.reduces:
                break
    return chain


def _follows(operator: Operator, chain: Sequence[Operator]) -> bool:
    """Whether the operator does something there, and its result is not constant for certain."""
    if not chain:
        # A constant away from the input is nothing to optimise.
        return operator.name not in ("times", "plus", "minus")
    if operator.name == chain[-1].name or {operator.name, chain[-1].name} <= IDEMPOTENT:
        return False
    normalised = any(o.normalises for o in chain)
    if operator.reduces or operator.normalises:
        # The sum of a softmax is one, the mean of a layer norm zero.
        return not normalised
    # Rows are gone once they are columns: parameters and y have the shape of before.
    return not (operator.needs and any(o.name == "transpose" for o in chain))


def _problem(chain: Sequence[Operator], dice: random.Random) -> str:
    needs = frozenset(n for operator in chain for n in operator.needs)
    inputs = ["x", "y"] if "y" in needs else ["x"]
    lines = list(_lines(chain, dice))
    about = ", then ".join(operator.name.replace("_", " ") for operator in chain)
    parameters = [PARAMETERS[n] for n in PARAMETERS if n in needs]
    cpu = (dice.choice(CPU_ROWS), dice.choice(CPU_COLUMNS))
    gpu = (dice.choice(GPU_ROWS), dice.choice(GPU_COLUMNS))
    made = ", ".join(["torch.randn(ROWS, COLUMNS)"] * len(inputs))
    text = f'"""Synthetic: {about}.\n\n{" and ".join(inputs)} (ROWS, COLUMNS).\n"""\n\n'
    text += "import torch\n"
    if any("F." in line for line in lines):
        text += "import torch.nn.functional as F\n"
    text += f"from torch import nn\n\nROWS = {cpu[0]}\nCOLUMNS = {cpu[1]}\n"
    text += f"SHAPES = {{\n{_sizes('cpu', cpu, dice)}{_sizes('gpu', gpu, dice)}}}\n\n\n"
    text += "class Model(nn.Module):\n"
    if parameters:
        text += "    def __init__(self, columns):\n        super().__init__()\n"
        text += "".join(f"        {line}\n" for line in parameters) + "\n"
    text += f"    def forward(self, {', '.join(inputs)}):\n"
    text += "".join(f"        {line}\n" for line in lines)
    text += f"\n\ndef get_inputs():\n    return [{made}]\n\n\n"
    return f"{text}def get_init_inputs():\n    return [{'COLUMNS' if parameters else ''}]\n"


def _lines(chain: Sequence[Operator], dice: random.Random) -> Iterator[str]:
    value = "x"
    for place, operator in enumerate(chain):
        text = operator.text.format(a=value, c=dice.choice(CONSTANTS))
        yield f"return {text}" if place == len(chain) - 1 else f"a = {text}"
        value = "a"


def _sizes(device: str, first: tuple[int, int], dice: random.Random) -> str:
    entries = ""
    for rows, columns in (first, dice.choice(ODD[device])):
        name = f"{rows}x{columns}"
        entries += f'        {{"name": "{name}", "ROWS": {rows}, "COLUMNS": {columns}}},\n'
    return f'    "{device}": [\n{entries}    ],\n'
