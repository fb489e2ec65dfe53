"""FlashInfer-Bench's data set (its schema 0.1): definitions, solutions, workloads and traces.

DIR/definitions/warpsmith/OPERATOR.json            the reference as a `run` function
DIR/solutions/warpsmith/warpsmith/OPERATOR/*.json  a kernel behind a `run` function of its own
DIR/workloads/warpsmith/OPERATOR.jsonl             the shapes of the task
DIR/traces/warpsmith/warpsmith/OPERATOR.jsonl      what was measured, one line per machine

Every dimension of an input is a variable axis: its `apply` looks a kernel up by their exact values,
and would not notice another value of a constant one. Our errors are norms against a float64 oracle;
largest absolute differences were not kept, so traces say NaN there and `apply` waits for traces of
`flashinfer-bench run`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from agent.export.artefact import Artefact, Gathered, Nothing, decisive
from agent.export.capture import Measured
from agent.export.folder import check_folder, staged
from agent.export.manifest import write_manifest
from agent.export.runtime.machine import machine_of
from agent.export.standalone import Judges, Standalone, standalone
from sandbox.errors import ConfigError
from sandbox.types import Evaluation, Language, Task

OWNED = ("definitions", "solutions", "workloads", "traces")
AUTHOR = OP_TYPE = "warpsmith"
SCALARS = {"int": "int64", "float": "float32", "bool": "bool"}
DTYPES = frozenset(
    (
        *("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8", "bool"),
    )
)
NAMESPACE = uuid.UUID("6b0f5a0c-4f3c-5c53-9d6c-1e6a3c0d7e11")
"""Of workload ids, which follow from the task and its shape."""
RUN = """


def _runner():
    import torch

    models = {{}}
    names = {names!r}

    def made(device):
        model = {kind}(*get_init_inputs()).to(device=device, dtype=torch.{dtype})
        own = [n for n, _ in model.named_parameters()] + [n for n, _ in model.named_buffers()]
        return model, [name if name in own else None for name in {own}]

    def run({arguments}):
        given = ({inputs},)
        state = ({state})
        device = next(g.device for g in given if isinstance(g, torch.Tensor))
        if device not in models:
            models[device] = made(device)
        model, places = models[device]
        with torch.no_grad():
            if not state:  # what functional_call costs is as long as a short kernel takes
                return model(*given)
            named = {{place: t for place, t in zip(places, state, strict=True) if place}}
            return torch.func.functional_call(model, named, given)

    return run


_run = _runner()


def run({arguments}):
    return _run({arguments})
"""
INIT = """

def get_init_inputs():
    import json

    def unpacked(value):
        if isinstance(value, dict):
            return tuple(unpacked(v) for v in value["tuple"])
        return [unpacked(v) for v in value] if isinstance(value, list) else value

    return [unpacked(value) for value in json.loads({init!r})]
"""


class Inexpressible(Exception):
    """The schema has no words for this operator; the message says why."""


def export_flashinfer(gathered: Gathered, folder: Path, judges: Judges) -> list[Path]:
    """Write the data set; returns its files, the manifest last.

    Raises ConfigError where the folder cannot be used, or nothing can be exported.
    """
    check_folder(folder, "flashinfer")
    try:
        with staged(folder, OWNED) as stage:
            paths = _write(gathered, stage, judges)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return [folder / path.relative_to(stage) for path in paths]


def _write(gathered: Gathered, folder: Path, judges: Judges) -> list[Path]:
    left_out = dict(gathered.left_out)
    ordered = sorted(gathered.artefacts, key=lambda a: (a.operator, a.candidate.id))
    kept: list[Artefact] = []
    paths: list[Path] = []
    for _, group in groupby(ordered, key=lambda a: a.operator):
        artefacts = list(group)
        made = [standalone(a, judges(a.task)) for a in artefacts]
        left_out |= {
            a.task.id: m for a, m in zip(artefacts, made, strict=True) if isinstance(m, str)
        }
        ready = [m for m in made if isinstance(m, Standalone)]
        if not ready:
            continue
        try:
            paths += _operator(ready, folder)
        except Inexpressible as error:
            left_out |= {a.task.id: str(error) for a in artefacts}
        else:
            kept += [r.artefact for r in ready]
    if not kept:
        why = "; ".join(f"{task}: {reason}" for task, reason in left_out.items())
        raise Nothing(f"nothing for FlashInfer-Bench: {why or 'the runs have no wins'}")
    facts = {"dataset": AUTHOR, "left_out": left_out}
    return [*paths, write_manifest(folder, facts, kept)]


def _operator(ready: Sequence[Standalone], folder: Path) -> list[Path]:
    first = ready[0].artefact
    made = definition(first)
    solutions = {solution["name"]: solution for solution in map(solution_of, ready)}
    shapes = [s for s in first.interface.shapes if _same_init(s, first)]
    loads = [workload(first, shape) for shape in shapes]
    lines = [
        trace(each, evaluation)
        for each in ready
        for evaluation in _evaluations(each)
        if evaluation.passed and evaluation.timing is not None
    ]
    op, author = Path(OP_TYPE), Path(AUTHOR) / OP_TYPE
    name = first.operator
    written = [_json(folder / "definitions" / op / f"{name}.json", made)]
    for title, solution in solutions.items():
        written.append(_json(folder / "solutions" / author / name / f"{title}.json", solution))
    only = [{"definition": name, "workload": load} for load in loads]
    written.append(_lines(folder / "workloads" / op / f"{name}.jsonl", only))
    written.append(_lines(folder / "traces" / author / f"{name}.jsonl", lines))
    return written


def definition(artefact: Artefact) -> dict[str, Any]:
    """Raises Inexpressible."""
    inputs, outputs = _specs(artefact)
    axes = {axis: {"type": "var"} for spec in inputs.values() for axis in spec["shape"] or ()}
    for spec in outputs.values():
        axes |= {a: {"type": "const", "value": int(a[1:])} for a in spec["shape"] if a not in axes}
    return {
        "name": artefact.operator,
        "op_type": OP_TYPE,
        "axes": axes,
        "inputs": inputs,
        "outputs": outputs,
        "reference": _with_run(artefact.task, artefact, "Model", artefact.task.source, "names"),
        "description": f"Task {artefact.task.id}, {artefact.task.dtype}",
        "tags": [f"task:{artefact.task.id}"],
    }


def solution_of(ready: Standalone) -> dict[str, Any]:
    """The kernel as Python that builds itself."""
    artefact, candidate = ready.artefact, ready.candidate
    match = decisive(artefact).parameters
    own = "own" if match == "order" else "names"
    text = _with_run(artefact.task, artefact, "ModelNew", candidate.source, own)
    triton = candidate.language is Language.TRITON
    return {
        "name": _title(ready),
        "definition": artefact.operator,
        "author": AUTHOR,
        "spec": {
            "language": "triton" if triton else "python",
            "target_hardware": sorted(artefact.decisive),
            "entry_point": "main.py::run",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": text}],
        "description": f"Kernel {artefact.candidate.id} ({artefact.candidate.language.value}), "
        f"licence {artefact.licence}",
    }


def workload(artefact: Artefact, shape: Measured) -> dict[str, Any]:
    """One shape with its exact sizes; tensors are random, numbers are as measured."""
    axes: dict[str, int] = {}
    inputs: dict[str, Any] = {}
    for name, part in zip(_argument_names(artefact), _parts(shape), strict=True):
        if len(part) == 3:
            axes |= {f"{name}_{i}": size for i, size in enumerate(part[1])}
            inputs[name] = {"type": "random"}
        else:
            inputs[name] = {"type": "scalar", "value": part[1]}
    identity = uuid.uuid5(NAMESPACE, f"{artefact.task.hash} {shape.signature}")
    return {"axes": axes, "inputs": inputs, "uuid": str(identity)}


def trace(ready: Standalone, evaluation: Evaluation) -> dict[str, Any]:
    """What was measured on one machine, on the shape that was timed."""
    artefact = ready.artefact
    assert evaluation.timing is not None
    environment = dict(evaluation.environment)
    errors = [c.norm_error for c in evaluation.cases if c.norm_error is not None]
    speedup = evaluation.timing.speedup
    return {
        "definition": artefact.operator,
        "workload": workload(artefact, artefact.interface.shapes[0]),
        "solution": _title(ready),
        "evaluation": {
            "status": "PASSED",
            "environment": {"hardware": machine_of(environment), "libs": environment},
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S"),
            "log": f"protocol {artefact.config.id}, campaign {artefact.provenance.run}",
            "correctness": {
                "max_relative_error": max(errors, default=0.0),
                "max_absolute_error": "NaN",
                "extra": {"relative": "norm of the error over norm of the truth, worst case"},
            },
            "performance": {
                "latency_ms": evaluation.timing.reference_ms / speedup.value,
                "reference_latency_ms": evaluation.timing.reference_ms,
                "speedup_factor": speedup.value,
            },
        },
    }


def _specs(artefact: Artefact) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs; an output's dimension is an input's axis where they are always equal."""
    shapes = [s for s in artefact.interface.shapes if _same_init(s, artefact)]
    columns = list(zip(*map(_parts, shapes), strict=True))
    names = _argument_names(artefact)
    inputs: dict[str, Any] = {}
    known: dict[tuple[int, ...], str] = {}
    for name, parts in zip(names, columns, strict=True):
        if len(parts[0]) != 3:
            inputs[name] = {"shape": None, "dtype": SCALARS[parts[0][0]]}
            continue
        dtype = _dtype(parts[0][0])
        if not dtype.startswith(("float", "bfloat", "bool")):
            raise Inexpressible(f"{name} holds integers, which its random inputs do not respect")
        axes = [f"{name}_{i}" for i in range(len(parts[0][1]))]
        inputs[name] = {"shape": axes, "dtype": dtype}
        for i, axis in enumerate(axes):
            known.setdefault(tuple(part[1][i] for part in parts), axis)
    outputs: dict[str, Any] = {}
    every = list(zip(*(json.loads(s.outputs) for s in shapes), strict=True))
    if not every:
        raise Inexpressible("its output shapes were not recorded; export the campaign again")
    for place, found in enumerate(every):
        name = "output" if len(every) == 1 else f"output{place}"
        sizes = list(zip(*(size for _, size in found), strict=True))
        axes = [known.get(values, f"c{values[0]}") for values in sizes]
        outputs[name if name not in inputs else f"{name}_"] = {
            "shape": axes,
            "dtype": _dtype(found[0][0]),
        }
    return inputs, outputs


def _with_run(task: Task, artefact: Artefact, kind: str, source: str, own: str) -> str:
    names = _argument_names(artefact)
    count = len(artefact.interface.inputs)
    text = source + (INIT.format(init=artefact.interface.init) if kind == "ModelNew" else "")
    return text + RUN.format(
        names=list(artefact.interface.state),
        arguments=", ".join(names),
        inputs=", ".join(names[:count]),
        state="".join(f"{name}, " for name in names[count:]),
        kind=kind,
        dtype=task.dtype,
        own=own,
    )


def _argument_names(artefact: Artefact) -> list[str]:
    """Of forward's arguments, then the state, as Python names that differ."""
    names = [name for name, _ in artefact.interface.inputs]
    for path in artefact.interface.state:
        name = path.replace(".", "_")
        names.append(name if name not in names else f"{name}_state")
    return names


def _parts(shape: Measured) -> list[list[Any]]:
    """[dtype, shape, strides] or [type, value] of each argument."""
    parts: list[list[Any]] = json.loads(shape.signature)[2:]
    return parts


def _same_init(shape: Measured, artefact: Artefact) -> bool:
    return bool(json.loads(shape.signature)[1] == artefact.interface.init)


def _dtype(name: str) -> str:
    plain = name.removeprefix("torch.")
    if plain not in DTYPES:
        raise Inexpressible(f"FlashInfer-Bench has no dtype {plain}")
    return plain


def _title(ready: Standalone) -> str:
    return f"{ready.artefact.operator}_{ready.candidate.id}"


def _evaluations(ready: Standalone) -> list[Evaluation]:
    """Of this very text, by machine; none for a converted kernel that was not judged yet."""
    if ready.is_converted:
        return [] if ready.evaluation is None else [ready.evaluation]
    return [finding.evaluation for finding in ready.artefact.decisive.values()]


def _json(path: Path, record: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def _lines(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
