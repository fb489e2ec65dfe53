"""One Markdown page per kernel: what was proven, where, against what, and who made it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent.export.artefact import (
    ACTIVE,
    Artefact,
    Finding,
    against_best,
    beats_eager,
    decisive,
    state_of,
)
from agent.export.capture import Measured
from agent.export.runtime.machine import machine_of
from sandbox.judging.best import best_baseline


def page(artefact: Artefact, package: str | None) -> str:
    """Of one kernel; `package` is the Python package that offers it, if any."""
    evaluation, provenance = decisive(artefact), artefact.provenance
    lines = [
        f"# {artefact.operator}: {artefact.candidate.id}",
        "",
        f"Task `{artefact.task.id}` ({artefact.task.dtype}, {artefact.task.device}); "
        f"language `{artefact.candidate.language.value}`; licence {artefact.licence}.",
        "",
        *_use(artefact, package),
        "## Where it is used",
        "",
        "| shape | arguments | machine | state |",
        "|---|---|---|---|",
        *(
            f"| {shape.name} | `{shape.readable}` | {machine} "
            f"| {state_of(artefact, found, shape)} |"
            for machine, found in artefact.decisive.items()
            for shape in artefact.interface.shapes
        ),
        "",
        "Any other dtype, shape, stride or machine goes to the reference.",
        *_switch(artefact, package),
        "",
        "## Measured",
        "",
        "| purpose | status | eager | B* | against B* | pairs | precision | machine |",
        "|---|---|---|---|---|---|---|---|",
        *map(_measured, artefact.findings),
        "",
        f"Protocol `{artefact.config.id}` (preset {artefact.config.preset}), parameters matched by "
        f"{evaluation.parameters}, {len(evaluation.cases)} cases.",
        "",
        *(f"- {name}: {value}" for name, value in sorted(evaluation.environment.items())),
        "",
        "## Origin",
        "",
        f"- run: {provenance.run}",
        f"- proposer: {provenance.proposer} ({provenance.model_class})",
        f"- strategy: {provenance.strategy or 'none'}",
        f"- parents: {', '.join(provenance.parents) or 'none'}",
        f"- prompt SHA-256: {provenance.prompt_sha256 or 'none'}",
        f"- source SHA-256: {artefact.source_sha256}",
        "",
        *_suspicions(artefact),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _use(artefact: Artefact, package: str | None) -> Sequence[str]:
    if package is None:
        return ()
    arguments = ", ".join(name for name, _ in artefact.interface.inputs)
    state = "".join(f", {name}" for name in artefact.interface.state)
    gradient = {
        "recompute": "Gradients: the reference is computed again in the backward pass.",
        "none": "For inference only: a backward pass through it raises.",
    }[artefact.interface.autograd]
    name = artefact.operator
    return (
        "```python",
        f"import {package}",
        "",
        f'layer = {package}.layer("{name}")  # a module with the reference\'s parameters',
        f'{package}.operator("{name}")({arguments}{state})  # or the operator by itself',
        "```",
        "",
        gradient,
        "",
    )


def _switch(artefact: Artefact, package: str | None) -> Sequence[str]:
    """What the library's user may decide of a kernel that is faster than eager alone."""
    every = [(f, s) for f in artefact.decisive.values() for s in artefact.interface.shapes]
    if not any(_only_eager(artefact, finding, shape) for finding, shape in every):
        return ()
    name = "PACKAGE" if package is None else package.upper()
    return ("", f"Where it is faster than eager alone, `{name}_AGAINST=eager` lets it run.")


def _only_eager(artefact: Artefact, finding: Finding, shape: Measured) -> bool:
    active = state_of(artefact, finding, shape) == ACTIVE
    return not active and beats_eager(artefact, finding, shape)


def _measured(finding: Finding) -> str:
    evaluation = finding.evaluation
    name, _ = best_baseline(evaluation.baselines)
    cells = (
        finding.purpose,
        evaluation.status.value,
        str(evaluation.speedup or "-"),
        name,
        str(against_best(evaluation) or "-"),
        str(len(evaluation.timing.pairs)) if evaluation.timing else "-",
        evaluation.precision or "-",
        machine_of(evaluation.environment),
    )
    return f"| {' | '.join(cells)} |"


def _suspicions(artefact: Artefact) -> Sequence[str]:
    found = decisive(artefact).suspicions
    if not found:
        return ()
    return ("## What a reader should look at", "", *(f"- {evidence}" for evidence in found), "")
