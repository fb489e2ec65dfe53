"""A task's reference as data: a flat list of ATen operators with shapes, dtypes and strides.

References are trusted, but they do not run in the calling process (sandbox/tracer.py). Not covered:
references whose operators depend on values, which raise TaskError. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sandbox.cache import cache_root, keep_json, read_json
from sandbox.errors import TaskError
from sandbox.tracer import TRACER
from sandbox.types import SCHEMA_VERSION, Task, digest

TRACED = 3
"""Of what a trace tells; 2: values of constants; 3: statements."""


@dataclass(frozen=True)
class Ref:
    """A use of another node's output."""

    node: str


Arg = None | bool | int | float | str | Ref | tuple["Arg", ...]


@dataclass(frozen=True)
class TensorMeta:
    """What is known of a tensor before it exists."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class Node:
    """One operator, or a placeholder: `input`, `parameter`, `buffer`."""

    name: str
    op: str
    """`aten.add.Tensor`, `getitem`, `input`, `parameter`, `buffer` or `constant`, whose argument is
    its value where it has one element and no dimension.
    """
    args: tuple[Arg, ...] = ()
    kwargs: Mapping[str, Arg] = field(default_factory=dict)
    outputs: tuple[TensorMeta, ...] = ()
    """One per returned tensor; several for operators that return a tuple."""
    target: str = ""
    """The position of an `input` in get_inputs(), the dotted attribute of a `parameter` or
    `buffer`.
    """
    statement: str = ""
    """Of a `forward` of the reference, after its number in their order: `2: y = torch.relu(x)`."""

    @property
    def meta(self) -> TensorMeta:
        return self.outputs[0]


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order; `result` mirrors what forward returns, tensors replaced by Ref."""

    nodes: tuple[Node, ...]
    result: Arg
    scalars: tuple[int, ...] = ()
    """Positions in get_inputs() that hold no tensor (their values are constants in the nodes)."""


def trace(task: Task, shape_index: int = 0) -> Graph:
    """The reference at one of the task's shapes; TaskError, in one line, where it fails."""
    return _trace(task, (shape_index,))[0]


def trace_all(task: Task) -> tuple[Graph, ...]:
    """The reference at each of the task's shapes, in their order, from one child process."""
    return _trace(task, tuple(range(len(task.shapes))))


def trace_ahead(tasks: Sequence[Task]) -> None:
    """Has these tasks' graphs on disk for `trace_all`, all from one child process, since a fork
    takes longer than a trace. What fails here, `trace_all` says.
    """
    wanted = [(task, tuple(range(len(task.shapes)))) for task in tasks]
    new = [(task, indices) for task, indices in wanted if not _path(task, indices).exists()]
    if not new:
        return
    reply = TRACER.ask({"each": [_request(task, indices) for task, indices in new]})
    for (task, indices), found in zip(new, reply.get("each", ()), strict=False):
        if "graphs" in found:
            keep_json(_path(task, indices), found["graphs"])


def _trace(task: Task, indices: tuple[int, ...]) -> tuple[Graph, ...]:
    path = _path(task, indices)
    graphs = read_json(path)
    if graphs is None:
        reply = TRACER.ask(_request(task, indices))
        if "graphs" not in reply:
            raise TaskError(f"{task.id}: the reference cannot be traced: {reply['error']}")
        graphs = list(reply["graphs"])
        keep_json(path, graphs)
    return tuple(_decode_graph(record) for record in graphs)


def _path(task: Task, indices: tuple[int, ...]) -> Path:
    key = digest([task.hash, indices, _torch_version(), SCHEMA_VERSION, TRACED])
    return cache_root() / "graphs" / f"{key}.json"


@cache
def _torch_version() -> str:
    """Without importing it; reading a package's metadata takes longer than reading a graph."""
    return version("torch")


def _request(task: Task, indices: tuple[int, ...]) -> dict[str, Any]:
    shapes = [dict(task.shapes[i].constants) for i in indices]
    return {"source": task.source, "dtype": task.dtype, "shapes": shapes}


def _decode_graph(record: Mapping[str, Any]) -> Graph:
    nodes = tuple(
        Node(
            name=n["name"],
            op=n["op"],
            args=tuple(_decode(a) for a in n["args"]),
            kwargs={k: _decode(v) for k, v in n["kwargs"].items()},
            outputs=tuple(
                TensorMeta(tuple(o["shape"]), o["dtype"], tuple(o["stride"])) for o in n["outputs"]
            ),
            target=n["target"],
            statement=n["statement"],
        )
        for n in record["nodes"]
    )
    return Graph(nodes, _decode(record["result"]), tuple(record["scalars"]))


def _decode(value: Any) -> Arg:
    if isinstance(value, dict):
        return Ref(value["ref"])
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    assert value is None or isinstance(value, bool | int | float | str)
    return value
