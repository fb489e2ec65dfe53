"""A task's reference as data: a flat list of ATen operators with shapes, dtypes and strides.

References are trusted, but they do not run in the calling process: `trace` starts `python -m
sandbox.graph`, which executes the source under FakeTensorMode (no memory is touched, so gigabyte
shapes cost nothing) and decomposes it to core ATen. Not covered: references whose operators depend
on values, which raise TaskError. Standard library only at import; torch is imported in the child.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sandbox.cache import cache_root, read_json, write_json
from sandbox.errors import TaskError
from sandbox.types import SCHEMA_VERSION, Task, digest

TRACE_TIMEOUT_S = 180.0
PR_SET_PDEATHSIG = 1


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
    """The graphs as JSON, from a child process."""
    shapes = [dict(task.shapes[i].constants) for i in indices]
    request = json.dumps({"source": task.source, "dtype": task.dtype, "shapes": shapes})
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    try:
        child = subprocess.run(
            [sys.executable, "-m", "sandbox.graph", str(os.getpid())],
            input=request,
            capture_output=True,
            text=True,
            timeout=TRACE_TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TaskError(f"{task.id}: tracing took longer than {TRACE_TIMEOUT_S:g} s") from error
    if child.returncode != 0:
        last = child.stderr.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
        raise TaskError(f"{task.id}: the reference cannot be traced: {last[0]}")
    try:
        reply = json.loads(child.stdout)
    except ValueError as error:  # It left early, or wrote where only we may.
        raise TaskError(f"{task.id}: the reference cannot be traced: no reply") from error
    if "error" in reply:
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


# What follows runs in the child.


def _main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        return
    reply_stream, sys.stdout = sys.stdout, sys.stderr  # A reference that prints must not reach us.
    request = json.load(sys.stdin)
    try:
        graphs = [_describe(request["source"], request["dtype"], s) for s in request["shapes"]]
        reply: dict[str, Any] = {"graphs": graphs}
    except BaseException as error:  # noqa: BLE001 - the reference's own code runs here.
        lines = str(error).strip().splitlines() or [""]
        reply = {"error": f"{type(error).__name__}: {lines[0]}"}
    json.dump(reply, reply_stream)


def _describe(source: str, dtype_name: str, constants: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    from torch._decomp import core_aten_decompositions
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._pytree import tree_flatten, tree_unflatten

    module: dict[str, Any] = {"__name__": "reference"}
    exec(compile(source, "reference.py", "exec"), module)
    module.update(constants)
    dtype = getattr(torch, dtype_name)

    def cast(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    with FakeTensorMode(), torch.no_grad():
        model = module["Model"](*module["get_init_inputs"]())
        inputs = [cast(value) for value in module["get_inputs"]()]
        places = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        state = [("parameter", name, cast(p)) for name, p in model.named_parameters()]
        state += [("buffer", name, cast(b)) for name, b in model.named_buffers()]

        structure: list[Any] = []

        def forward(tensors: list[Any], values: list[Any]) -> Any:
            arguments = list(inputs)
            for place, tensor in zip(places, tensors, strict=True):
                arguments[place] = tensor
            attributes = {name: v for (_, name, _), v in zip(state, values, strict=True)}
            flat, spec = tree_flatten(
                torch.func.functional_call(model, attributes, tuple(arguments))
            )
            structure.append(spec)
            return flat

        traced = make_fx(forward, decomposition_table=core_aten_decompositions())(
            [inputs[i] for i in places], [value for _, _, value in state]
        )
    origins = [("input", str(i)) for i in places] + [(kind, name) for kind, name, _ in state]
    nodes: list[dict[str, Any]] = []
    result: Any = None
    for node in traced.graph.nodes:
        if node.op == "output":
            result = tree_unflatten([_encode(a) for a in node.args[0]], structure[-1])
            _check_result(result)
            continue
        op, target = _operator(node), ""
        if node.op == "placeholder":
            op, target = origins[len(nodes)]
        nodes.append(
            {
                "name": node.name,
                "op": op,
                "args": [_encode(a) for a in node.args] if node.op != "placeholder" else [],
                "kwargs": {k: _encode(v) for k, v in node.kwargs.items()},
                "outputs": _metas(node.meta.get("val")),
                "target": target,
            }
        )
    scalars = [i for i in range(len(inputs)) if i not in places]
    return {"nodes": _alive(nodes, result), "result": result, "scalars": scalars}


def _check_result(result: Any) -> None:
    if isinstance(result, tuple | list):
        for part in result:
            _check_result(part)
    elif isinstance(result, dict) and set(result) != {"ref"}:
        raise TypeError("forward returns a mapping; expected tensors, tuples or lists")


def _operator(node: Any) -> str:
    if node.op == "call_function":
        name = str(node.target)
        return (
            name if name.startswith(("aten.", "prims.")) else getattr(node.target, "__name__", name)
        )
    return str(node.op)


def _metas(value: Any) -> list[dict[str, Any]]:
    import torch

    values = value if isinstance(value, tuple | list) else [value]
    return [
        {
            "shape": list(v.shape),
            "dtype": str(v.dtype).removeprefix("torch."),
            "stride": list(v.stride()),
        }
        for v in values
        if isinstance(v, torch.Tensor)
    ]


def _encode(value: Any) -> Any:
    import torch

    if isinstance(value, torch.fx.Node):
        return {"ref": value.name}
    if isinstance(value, tuple | list):
        return [_encode(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value).removeprefix("torch.")


def _alive(nodes: list[dict[str, Any]], result: Any) -> list[dict[str, Any]]:
    """Placeholders, what the result needs, and what mutates its argument."""
    needed = set(_references(result))
    kept: list[dict[str, Any]] = []
    for node in reversed(nodes):
        placeholder = node["op"] in ("input", "parameter", "buffer")
        mutates = node["op"].split(".")[1:2] and node["op"].split(".")[1].endswith("_")
        if placeholder or mutates or node["name"] in needed:
            kept.append(node)
            needed.update(_references([node["args"], list(node["kwargs"].values())]))
    return kept[::-1]


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["ref"]]
    if isinstance(value, list | tuple):
        return [name for v in value for name in _references(v)]
    return []


if __name__ == "__main__":
    _main()
