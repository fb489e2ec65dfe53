"""Traces references in a process of its own: `python -m sandbox.tracer` imports torch once, and
forks for every request.

A reference runs under FakeTensorMode (no memory is touched, so gigabyte shapes cost nothing) and is
decomposed to core ATen. Standard library only at import; torch is imported in the other process,
which ends with ours, or once nothing was asked for a minute.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox.machine.parent import tied_to

TRACE_TIMEOUT_S = 180.0
FILE = "reference.py"
"""What its source is called in tracebacks."""
FRAME = re.compile(rf'File "{re.escape(FILE)}", line (\d+)')
IDLE_S = 60.0
"""After which the process, some 200 MB of torch, ends; the next request starts another."""
FIRST = """
import torch
class Model(torch.nn.Linear): pass
def get_inputs(): return [torch.randn(2, 2)]
def get_init_inputs(): return [2, 2]
"""
"""Traced before the first fork, since a first trace imports a few hundred modules of torch's."""


class Tracer:
    """A client of one tracing process at a time; safe for several threads and after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """`{"graphs": [...]}`, or `{"error": ...}` in one line; of a request `{"each": [...]}`,
        these in its order.
        """
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            for _ in range(2):  # the process may end of itself between two requests
                process = self._running()
                assert process.stdin is not None
                try:
                    process.stdin.write(line)
                    process.stdin.flush()
                    reply = _line(process, time.monotonic() + TRACE_TIMEOUT_S)
                except TimeoutError:
                    self._end()
                    return {"error": f"tracing took longer than {TRACE_TIMEOUT_S:g} s"}
                except BrokenPipeError:
                    reply = b""
                if reply:
                    return dict(json.loads(reply))
                self._end()
        return {"error": "its process ended"}

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            root = str(Path(__file__).resolve().parent.parent)
            path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sandbox.tracer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
            self._owner = os.getpid()
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


TRACER = Tracer()
"""One for the whole process."""


def _line(process: subprocess.Popen[bytes], deadline_s: float) -> bytes:
    """One line of its output, empty where it has ended; raises TimeoutError."""
    assert process.stdout is not None
    found = b""
    while not found.endswith(b"\n"):
        left_s = max(0.0, deadline_s - time.monotonic())
        ready, _, _ = select.select([process.stdout], [], [], left_s)
        if not ready:
            raise TimeoutError
        piece = os.read(process.stdout.fileno(), 1 << 20)
        if not piece:
            return b""
        found += piece
    return found


# What follows runs in the other process.


def _main() -> None:
    """Serve requests, one a line, until standard input ends or stays silent."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a reference that prints must not reach us
    children: list[int] = []

    def end_children() -> None:
        for pid in children:
            os.kill(pid, signal.SIGKILL)

    with tied_to(requests.fileno(), end_children):
        gc.disable()  # until all is there that stays, as in the zygote
        _describe(FIRST, "float32", {})
        gc.freeze()
        gc.enable()
        while select.select([requests], [], [], IDLE_S)[0]:
            line = requests.readline()
            if not line:
                return
            replies.write(_forked(line, children) + b"\n")
            replies.flush()


def _forked(line: bytes, children: list[int]) -> bytes:
    """What a fork of this process replies, one of `children` meanwhile; its end, however it ends,
    is its own.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        with contextlib.suppress(BaseException), os.fdopen(writer, "wb") as pipe:
            pipe.write(_reply(json.loads(line)))
        os._exit(0)
    children.append(pid)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        reply = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    children.remove(pid)
    return reply or json.dumps({"error": f"its process ended with status {status}"}).encode()


def _reply(request: Mapping[str, Any]) -> bytes:
    several = "each" in request
    reply = {"each": [_graphs(r) for r in request["each"]]} if several else _graphs(request)
    return json.dumps(reply).encode()


def _graphs(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        graphs = [_describe(request["source"], request["dtype"], s) for s in request["shapes"]]
        return {"graphs": graphs}
    except BaseException as error:  # noqa: BLE001 - the reference's own code runs here.
        lines = str(error).strip().splitlines() or [""]
        return {"error": f"{type(error).__name__}: {lines[0]}"}


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """To core ATen, collected before the first fork: torch's own table does so for every trace,
    which was three quarters of the time of one.
    """
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions().items())


def _describe(source: str, dtype_name: str, constants: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._pytree import tree_flatten, tree_unflatten

    module: dict[str, Any] = {"__name__": "reference"}
    exec(compile(source, FILE, "exec"), module)
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

        trace = make_fx(forward, decomposition_table=_decompositions(), record_stack_traces=True)
        traced = trace([inputs[i] for i in places], [value for _, _, value in state])
    statements = _Statements(source)
    origins = [("input", str(i)) for i in places] + [(kind, name) for kind, name, _ in state]
    nodes: list[dict[str, Any]] = []
    result: Any = None
    for node in traced.graph.nodes:
        if node.op == "output":
            result = tree_unflatten([_encode(a) for a in node.args[0]], structure[-1])
            _check_result(result)
            continue
        op, target = _operator(node), ""
        args = [_encode(a) for a in node.args] if node.op != "placeholder" else []
        if node.op == "placeholder":
            op, target = origins[len(nodes)]
        elif node.op == "get_attr":  # what forward() makes of numbers, such as torch.tensor(0.5)
            made = getattr(traced, node.target)
            op, args = "constant", [made.item()] if made.dim() == 0 else []
        nodes.append(
            {
                "name": node.name,
                "op": op,
                "args": args,
                "kwargs": {k: _encode(v) for k, v in node.kwargs.items()},
                "outputs": _metas(node.meta.get("val")),
                "target": target,
                "statement": statements.of(node.stack_trace),
            }
        )
    scalars = [i for i in range(len(inputs)) if i not in places]
    return {"nodes": _alive(nodes, result), "result": result, "scalars": scalars}


class _Statements:
    """Those of a reference that operators come from, numbered as they are first met."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.numbers: dict[int, int] = {}
        self.starts: dict[int, ast.stmt] = {}
        """By each of its lines, the statement that holds no other one."""
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.stmt) and not hasattr(node, "body"):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    self.starts[line] = node

    def of(self, stack: str | None) -> str:
        """`2: y = torch.relu(x)`; empty where the reference is not on the stack."""
        lines = FRAME.findall(stack or "")
        found = self.starts.get(int(lines[-1])) if lines else None
        if found is None:
            return ""
        number = self.numbers.setdefault(found.lineno, len(self.numbers) + 1)
        text = ast.get_source_segment(self.source, found) or ""
        return f"{number}: {' '.join(text.split())}"


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
