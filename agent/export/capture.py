"""What a reference looks like from outside: arguments, parameters, outputs, for every shape.

`python -m agent.export.capture` reads tasks as JSON and executes their (trusted) sources in a
process of its own, with fake tensors, so that neither memory nor a GPU is needed. What an operator
cannot express is told by name; such a task is still exported as a stand-alone file.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from agent.export.runtime.hosts import Incomparable, facts
from agent.export.runtime.models import init_text, init_values, state_names
from agent.export.runtime.signature import Argument, readable, signature_of
from sandbox.errors import ConfigError
from sandbox.records import from_record, to_record
from sandbox.types import Task

TIMEOUT_S = 300
RESERVED = ("init", "self")


@dataclass(frozen=True)
class Measured:
    """One shape of a task."""

    name: str
    signature: str
    readable: str
    outputs: str = "[]"
    """JSON of [dtype, shape] of each output."""


@dataclass(frozen=True)
class Interface:
    """How the operator of a task is called; `refused` says why there can be none."""

    inputs: tuple[tuple[str, str], ...] = ()
    state: tuple[str, ...] = ()
    init: str = "[]"
    outputs: int | None = None
    autograd: str = "none"
    shapes: tuple[Measured, ...] = ()
    refused: str | None = None
    facts: str | None = None
    """Literal of what `runtime.hosts.facts` says of the reference."""
    unlike: str = "exported before layers were"
    """Why no module of a user can be told to be the reference, where `facts` is None."""


class Refused(Exception):
    """The reference cannot be an operator; the message says why."""


def interfaces(tasks: Sequence[Task]) -> list[Interface]:
    """In the order of the tasks; raises ConfigError where the process fails as a whole."""
    command = [sys.executable, "-m", "agent.export.capture"]
    sent = json.dumps(to_record(list(tasks)))
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        command,
        input=sent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # whatever a reference prints
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"the references could not be read: {last}")
    found = json.loads(done.stdout.splitlines()[-1])
    return [from_record(Interface, record) for record in found]


def interface(task: Task) -> Interface:
    """Executes the task's source in this process."""
    try:
        refuse_constants(task)
        found = [_shape(task, dict(shape.constants), shape.name) for shape in task.shapes]
    except Refused as refused:
        return Interface(refused=str(refused))
    except Exception as error:  # noqa: BLE001  a reference may raise anything; it is then told
        return Interface(refused=f"its reference fails here: {type(error).__name__}: {error}")
    first = found[0]
    shapes = tuple(shape for f in found if _same_call(f, first) for shape in f.shapes)
    return replace(first, shapes=shapes)


def refuse_constants(task: Task) -> None:
    """A Model that reads the constants which shapes change is another model for each of them."""
    changed = {name for shape in task.shapes for name, _ in shape.constants}
    tree = ast.parse(task.source)
    for kind in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        used = {n.id for n in ast.walk(kind) if isinstance(n, ast.Name)} & changed
        if used:
            raise Refused(f"{kind.name} reads {sorted(used)[0]}, which differs from shape to shape")


def _same_call(one: Interface, other: Interface) -> bool:
    return (one.inputs, one.state, one.outputs) == (other.inputs, other.state, other.outputs)


def _shape(task: Task, constants: dict[str, Any], name: str) -> Interface:
    module = types.ModuleType("reference")
    exec(compile(task.source, task.id, "exec"), module.__dict__)
    vars(module).update(constants)
    dtype = getattr(torch, task.dtype)
    init = list(module.get_init_inputs())
    try:
        text = init_text(init)
    except TypeError:
        raise Refused("its constructor takes more than numbers and text") from None
    if init_values(text) != init:
        raise Refused("its constructor's arguments do not survive JSON")
    with FakeTensorMode():
        model = _cast(module.Model(*init), dtype)
        given = list(module.get_inputs())
        arguments = [_argument(value, dtype) for value in given]
        named = dict([*model.named_parameters(), *model.named_buffers()])
        _refuse_attributes(model)
        outputs = _forward(model, arguments, named)
        autograd = _differentiable(model, arguments)
        known, unlike = _facts(task, model)
    tensors = [*arguments, *named.values()]
    if not any(isinstance(a, torch.Tensor) for a in arguments):
        raise Refused("forward takes no tensor")
    signature = signature_of(task.device, tensors, text)
    return Interface(
        inputs=tuple(zip(_names(module.Model, arguments), map(_kind, arguments), strict=True)),
        state=tuple(state_names(model)),
        init=text,
        outputs=None if isinstance(outputs, torch.Tensor) else len(outputs),
        autograd=autograd,
        shapes=(Measured(name, signature, readable(arguments), _outputs(outputs)),),
        facts=known,
        unlike=unlike,
    )


def _outputs(found: Any) -> str:
    listed = [found] if isinstance(found, torch.Tensor) else found
    return json.dumps([[str(o.dtype), list(o.shape)] for o in listed])


def _facts(task: Task, model: torch.nn.Module) -> tuple[str | None, str]:
    """What tells whether a user's module is this reference, or why nothing does."""
    if "training" in task.source:
        return None, "its reference may depend on the mode, train or eval"
    try:
        return repr(tuple(facts(model))), ""
    except Incomparable as error:
        return None, str(error)


def _cast(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """`model.to(dtype)`, which fake parameters refuse."""
    for owner in model.modules():
        for name, parameter in owner._parameters.items():
            if _differs(parameter, dtype):
                owner._parameters[name] = torch.nn.Parameter(parameter.detach().to(dtype))
        for name, buffer in owner._buffers.items():
            if _differs(buffer, dtype):
                owner._buffers[name] = buffer.to(dtype)
    return model


def _differs(tensor: torch.Tensor | None, dtype: torch.dtype) -> bool:
    return tensor is not None and tensor.is_floating_point() and tensor.dtype != dtype


def _argument(value: Any, dtype: torch.dtype) -> Argument:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, bool | int | float):
        return value
    raise Refused(f"forward takes a {type(value).__name__}; operators take tensors and numbers")


def _refuse_attributes(model: torch.nn.Module) -> None:
    for owner in model.modules():
        for name, value in vars(owner).items():
            if isinstance(value, torch.Tensor):
                raise Refused(f"it keeps a tensor in {name} that is no parameter and no buffer")


def _forward(model: torch.nn.Module, arguments: list[Argument], named: dict[str, Any]) -> Any:
    """The outputs, after what an operator must not do was looked for."""
    held = [a for a in [*arguments, *named.values()] if isinstance(a, torch.Tensor)]
    versions = [t._version for t in held]
    with torch.no_grad():
        outputs = model(*arguments)
    if [t._version for t in held] != versions or any(
        b is not named[name] for name, b in model.named_buffers()
    ):
        raise Refused("it changes its arguments, parameters or buffers")
    listed = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    if not isinstance(listed, tuple | list) or not all(isinstance(o, torch.Tensor) for o in listed):
        raise Refused("forward returns more than tensors in a tuple")
    known = [t.untyped_storage()._cdata for t in held]
    for output in listed:
        if output.untyped_storage()._cdata in known:
            raise Refused("an output shares memory with an argument or another output")
        known.append(output.untyped_storage()._cdata)
    return outputs


def _differentiable(model: torch.nn.Module, arguments: list[Argument]) -> str:
    leaves = [
        a.detach().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in arguments
    ]
    with torch.enable_grad():
        outputs = model(*leaves)
    listed = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    return "recompute" if any(o.requires_grad for o in listed) else "none"


def _names(kind: Any, arguments: Sequence[Argument]) -> Iterator[str]:
    """Of forward's parameters, as a schema may hold them."""
    given = list(inspect.signature(kind.forward).parameters)[1:]
    for place in range(len(arguments)):
        name = given[place] if place < len(given) else f"argument{place}"
        plain = re.sub(r"\W", "", name)
        taken = plain in RESERVED or plain.startswith("state")
        yield f"{plain}_" if taken else plain


def _kind(argument: Argument) -> str:
    return "Tensor" if isinstance(argument, torch.Tensor) else type(argument).__name__


def main() -> None:
    """Tasks on stdin, interfaces as the last line of stdout."""
    tasks = [from_record(Task, record) for record in json.load(sys.stdin)]
    found = [to_record(interface(task)) for task in tasks]
    print("\n" + json.dumps(found))  # a reference may have left a line unfinished


if __name__ == "__main__":
    main()
