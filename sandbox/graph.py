"""A task's reference as data: a flat list of ATen operators with shapes, dtypes and strides.

References are trusted, but they do not run in the calling process (sandbox/tracer.py). Not covered:
references whose operators depend on values, which raise TaskError. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from sandbox.cache import cache_root, read_json, write_json
from sandbox.errors import TaskError
from sandbox.tracer import TRACER
from sandbox.types import SCHEMA_VERSION, Task, digest


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
    """`aten.add.Tensor`, `getitem`, `input`, `parameter` or `buffer`."""
    args: tuple[Arg, ...] = ()
    kwargs: Mapping[str, Arg] = field(default_factory=dict)
    outputs: tuple[TensorMeta, ...] = ()
    """One per returned tensor; several for operators that return a tuple."""
    target: str = ""
    """The position of an `input` in get_inputs(), the dotted attribute of a `parameter` or
    `buffer`.
    """

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


def _trace(task: Task, indices: tuple[int, ...]) -> tuple[Graph, ...]:
    key = digest([task.hash, indices, version("torch"), SCHEMA_VERSION])
    path = cache_root() / "graphs" / f"{key}.json"
    graphs = read_json(path)
    if graphs is None:
        graphs = _ask(task, indices)
        write_json(path, graphs)
    return tuple(_decode_graph(record) for record in graphs)


def _ask(task: Task, indices: tuple[int, ...]) -> list[dict[str, Any]]:
    """The graphs as JSON, from another process."""
    shapes = [dict(task.shapes[i].constants) for i in indices]
    reply = TRACER.ask({"source": task.source, "dtype": task.dtype, "shapes": shapes})
    if "graphs" not in reply:
        raise TaskError(f"{task.id}: the reference cannot be traced: {reply['error']}")
    return list(reply["graphs"])


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
