"""The child that runs the user's model: traces it, times it, writes tasks and checks them.

`python -m agent.extraction.worker` (agent/extraction/child.py says how it is asked).
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from agent.export.runtime.graphs import base_name
from agent.export.runtime.signature import readable
from agent.extraction import capture, profile, samples, source
from agent.extraction.child import answer
from agent.extraction.figures import Sample, pooled
from agent.extraction.model import load_user_model
from agent.extraction.regions import Form, Region, computing, regions
from agent.extraction.report import Extraction, FoundRegion, Occurrence
from agent.extraction.units import Unit, units
from sandbox.checking import compare
from sandbox.checking.bounds import bound
from sandbox.errors import ConfigError
from sandbox.machine.device import fingerprint
from sandbox.machine.trees import Leaf
from sandbox.observation import Errors
from sandbox.records import to_record
from sandbox.types import EvalConfig

SMALLEST = 0.001
"""Share of the forward pass below which a region is not told of."""


@dataclass
class _Occurrence:
    unit: Unit
    skeleton: source.Skeleton
    seconds: float
    """Of one call."""
    samples: tuple[Sample, ...] = ()
    """Of the skeleton's arguments and state, once a task is written."""

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        return (*self.skeleton.arguments, *self.skeleton.state)


@dataclass
class _Group:
    """Equal regions: their skeletons agree, argument by argument; the first one is written."""

    occurrences: list[_Occurrence] = field(default_factory=list)

    @property
    def first(self) -> _Occurrence:
        return self.occurrences[0]

    @property
    def total_s(self) -> float:
        return sum(o.seconds * o.unit.calls for o in self.occurrences)


def extract(request: dict[str, Any]) -> dict[str, Any]:
    """The extraction, and the sources of its first tasks by name."""
    path, device, top = Path(request["model"]), request["device"], request["top"]
    loaded = load_user_model(path, device)
    latency_s = profile.latency_s(lambda: loaded.model(*loaded.inputs), device)
    found = units(loaded.model, loaded.inputs)
    if not found.units:
        reason = next(iter(found.untraceable.values()), "it has no modules")
        raise ConfigError(f"{path}: nothing of the model can be traced: {reason}")
    groups: dict[str, _Group] = {}
    refused: list[FoundRegion] = []
    profiled_s = 0.0
    for unit in found.units:
        seconds = profile.node_seconds(unit, device)
        profiled_s += unit.calls * sum(seconds.values())
        for region in regions(unit.traced):
            taken = sum(seconds.get(n, 0.0) for n in region.nodes)
            refused += _note(groups, unit, region, taken)
    whole_s = max(latency_s, profiled_s)
    ranked = sorted(groups.values(), key=lambda g: -g.total_s)
    ranked = [g for g in ranked if g.total_s >= SMALLEST * whole_s]
    names = _names(ranked)
    sources: dict[str, str] = {}
    told = [_scaled(r, whole_s) for r in refused if r.share >= SMALLEST * whole_s]
    for group, name in zip(ranked, names, strict=True):
        why: str | None = None
        if len(sources) < top:
            try:
                sources[name] = _task(group)
            except (source.Inexpressible, ValueError) as error:
                why = str(error)
        told.append(_found(group, name, whole_s, why))
    told.sort(key=lambda r: -r.share)
    extraction = Extraction(
        path.name,
        hashlib.sha256(path.read_bytes()).hexdigest(),
        device,
        latency_s * 1e3,
        profiled_s * 1e3,
        tuple(told),
        found.untraceable,
        fingerprint(device),
    )
    return {"extraction": to_record(extraction), "sources": sources}


def _note(
    groups: dict[str, _Group], unit: Unit, region: Region, seconds: float
) -> Iterable[FoundRegion]:
    """Put the region with its equals; yields it where it can be no task."""
    names, parameters = _state(unit)
    try:
        made = source.skeleton(region, names, parameters)
    except source.Inexpressible as error:
        total = seconds * unit.calls
        return [_refused(unit, region, total, seconds, str(error))]
    group = groups.setdefault(f"{region.form}\n{made.key}", _Group())
    group.occurrences.append(_Occurrence(unit, made, seconds))
    return []


def _state(unit: Unit) -> tuple[dict[fx.Node, str], frozenset[fx.Node]]:
    """Dotted names of the graph's state, and which of it are parameters."""
    places = [n for n in unit.traced.graph.nodes if n.op == "placeholder"]
    names: dict[fx.Node, str] = {}
    for node, part in zip(places, unit.traced.state, strict=False):
        names[node] = part if isinstance(part, str) else "constant"
    parameters = frozenset(n for n in names if n.name.startswith("p_"))
    return names, parameters


def _task(group: _Group) -> str:
    """The source of a task that gives what was captured; raises Inexpressible, or ValueError where
    an occurrence has values that cannot be drawn.
    """
    made, unit = group.first.skeleton, group.first.unit
    values = capture.captured(unit, {*made.region.inputs, *made.region.outputs})
    _sample(group.occurrences)
    together = map(pooled, zip(*(o.samples for o in group.occurrences), strict=True))
    found = dict(zip(group.first.nodes, together, strict=True))
    count = len(group.occurrences)
    text = source.write(made, found, count)
    problem = _check(text, made, values)
    if problem:
        names, parameters = _state(unit)
        exact = source.skeleton(made.region, names, parameters, plain=True)
        text = source.write(exact, found, count)
        problem = _check(text, exact, values)
    if problem:
        raise source.Inexpressible(f"as a task it is something else: {problem}")
    return text


def _sample(occurrences: Sequence[_Occurrence]) -> None:
    """Figures of what every occurrence was given, over all calls that were kept of its unit."""
    for unit in {id(o.unit): o.unit for o in occurrences}.values():
        inside = [o for o in occurrences if o.unit is unit]
        wanted = {node for o in inside for node in o.nodes}
        calls = [
            capture.captured(unit, wanted, values, samples.sample)
            for values in (unit.values, *unit.more)
        ]
        for each in inside:
            each.samples = tuple(pooled([call[node] for call in calls]) for node in each.nodes)


def _check(text: str, made: source.Skeleton, values: dict[fx.Node, Any]) -> str:
    """How the task differs from what was captured; empty if it does not."""
    module = types.ModuleType("extracted")
    try:
        exec(compile(text, "extracted.py", "exec"), module.__dict__)
        device = values[made.arguments[0]].device
        model = module.Model(*module.get_init_inputs()).to(device)
        given = module.get_inputs()
        named = dict([*model.named_parameters(), *model.named_buffers()])
        with torch.no_grad():
            for node in made.state:
                named[made.local[node].removeprefix("self.")].copy_(values[node])
            outputs = model(*(values[n] for n in made.arguments))
    except Exception as error:  # noqa: BLE001  text that we wrote is executed for the first time
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for node, made_input in zip(made.arguments, given, strict=True):
        wanted, drawn = samples.sample(values[node]), samples.sample(made_input)
        if wanted.signature != drawn.signature:
            return f"an input is {drawn}, not {wanted}"
    listed = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    for node, output in zip(made.region.outputs, listed, strict=True):
        wanted_value = values[node]
        if output.dtype != wanted_value.dtype or output.shape != wanted_value.shape:
            return f"an output is {readable([output])}, not {readable([wanted_value])}"
        leaf = Leaf(tuple(output.shape), str(output.dtype).removeprefix("torch."), (), 1)
        limit = bound(leaf, Errors(), Errors(), EvalConfig())
        apart = compare.errors(output, wanted_value)
        if not apart.within(limit):
            return f"an output is {apart.norm:.1g} off"
    return ""


# --- what is told ---------------------------------------------------------------------------------


def _found(group: _Group, name: str, whole_s: float, refused: str | None) -> FoundRegion:
    made = group.first.skeleton
    occurrences = tuple(map(_occurrence, group.occurrences))
    calls = sum(o.calls for o in occurrences)
    return FoundRegion(
        name,
        made.region.form.value,
        tuple(base_name(n) for n in computing(made.region.nodes)),
        readable([n.meta["val"] for n in made.arguments]),
        tuple(o.place for o in occurrences),
        calls,
        group.total_s / calls * 1e3,
        min(1.0, group.total_s / whole_s),
        refused,
        occurrences,
    )


def _occurrence(one: _Occurrence) -> Occurrence:
    local = one.skeleton.local
    names = [local[node].removeprefix("self.") for node in one.nodes]
    return Occurrence(
        _place(one.unit, one.skeleton.region),
        one.unit.calls,
        one.seconds * 1e3,
        dict(zip(names, one.samples, strict=True)) if one.samples else {},
        1 + len(one.unit.more) if one.samples else 0,
    )


def _refused(unit: Unit, region: Region, total_s: float, call_s: float, why: str) -> FoundRegion:
    """Its share is in seconds until the whole is known (`_scaled`)."""
    tensors = [n.meta.get("val") for n in region.inputs]
    return FoundRegion(
        region.name,
        region.form.value,
        tuple(base_name(n) for n in computing(region.nodes)),
        readable([t for t in tensors if isinstance(t, torch.Tensor)]),
        (_place(unit, region),),
        unit.calls,
        call_s * 1e3,
        total_s,
        why,
    )


def _scaled(region: FoundRegion, whole_s: float) -> FoundRegion:
    return replace(region, share=min(1.0, region.share / whole_s))


def _place(unit: Unit, region: Region) -> str:
    """The innermost module with all of the region's operations."""
    paths = []
    for node in computing(region.nodes):
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        paths.append(stack[-1][0].split(".") if stack and stack[-1][0] else [])
    common: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(p for p in (unit.name, ".".join(common)) if p)


def _names(groups: Sequence[_Group]) -> list[str]:
    """Distinct, from the operations and, where two agree in them, the first input's sizes."""
    plain = [_name(g.first.skeleton.region) for g in groups]
    found: list[str] = []
    for group, name in zip(groups, plain, strict=True):
        if plain.count(name) > 1:
            shape = group.first.skeleton.arguments[0].meta["val"].shape
            name = f"{name}_{'x'.join(map(str, shape)) or 'scalar'}"
        number, wanted = 2, name
        while name in found:
            name, number = f"{wanted}_{number}", number + 1
        found.append(name)
    return found


def _name(region: Region) -> str:
    last = f"_{Form.EPILOGUE}" if region.form is Form.EPILOGUE else ""
    return f"{region.name}{last}"


if __name__ == "__main__":
    answer(extract)
