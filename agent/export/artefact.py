"""One exported kernel with its evidence: the intermediate form that every format is made from.

It holds everything that judging it again needs (task, source, protocol) and everything that was
found (every evaluation, intervals, baselines, environments), with where it came from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from agent.confirm import upheld, wins
from agent.export.capture import Interface, Measured, interfaces
from agent.export.keeping import keeps
from agent.export.overhead import operator_ms
from agent.export.repeating import repeats
from agent.export.runtime.machine import machine, machine_of
from agent.journals.journal import Journal
from agent.journals.outcome import TaskReport, reports
from sandbox.errors import ConfigError
from sandbox.evidence import Kind
from sandbox.figures import Interval
from sandbox.judging.best import best_baseline
from sandbox.records import from_record, to_record
from sandbox.types import Candidate, EvalConfig, Evaluation, Task, digest

SCHEMA_VERSION = 1
ACTIVE = "active"
UNTIMED = "correct, not timed"
"""State of a task's further shapes."""
ORDINARY = (Kind.KERNEL, Kind.REWRITE, None)
"""A kernel that changes torch's flags or replays graphs is right in its own process alone."""


OPERATOR_MS = 0.02
"""Of one eager call beyond what it computes, where it was not measured on the machine in question:
0.013 ms were on one core of an EPYC.
"""


class Nothing(ConfigError):
    """No winner is left for a format; the message says why."""


@dataclass(frozen=True)
class Provenance:
    """Who made a kernel, and from what."""

    run: str
    proposer: str
    model_class: str
    """`no model` for the built-in proposer, `model` for a language model."""
    strategy: str
    parents: tuple[str, ...]
    prompt_sha256: str | None
    features: dict[str, str | int]


@dataclass(frozen=True)
class Finding:
    """One evaluation, and why it was made."""

    purpose: str
    """`search`, `confirm` or `revalidate`."""
    checked: str
    evaluation: Evaluation
    operator_ms: float | None = None
    """What calling an operator costs beside its kernel on the machine of the evaluation, measured
    on a probe when the library was written there; None where it was not."""


@dataclass(frozen=True)
class Artefact:
    """A winner."""

    operator: str
    """Name of the operator, unique in its library."""
    task: Task
    interface: Interface
    candidate: Candidate
    config: EvalConfig
    findings: tuple[Finding, ...]
    """In the order made; the last one of a machine decides there."""
    provenance: Provenance
    licence: str
    """SPDX identifier, or `unknown`."""
    schema_version: int = SCHEMA_VERSION

    @property
    def reference(self) -> str:
        """Equal for tasks whose operator is the same, whatever sizes or device they have."""
        return digest([self.task.source, self.task.dtype])

    @property
    def source_sha256(self) -> str:
        return hashlib.sha256(self.candidate.source.encode()).hexdigest()

    @property
    def ordered(self) -> bool:
        """Whether calls of the kernel are to follow each other."""
        return keeps(self.candidate.source, self.task.device, self.interface.state)

    @property
    def repeats(self) -> bool:
        """Whether equal calls of the kernel are certain to have equal results."""
        return not self.ordered and repeats(self.candidate.source)

    @property
    def decisive(self) -> dict[str, Finding]:
        """By machine."""
        return {machine_of(f.evaluation.environment): f for f in self.findings}

    def noted(self, finding: Finding) -> Artefact:
        return replace(self, findings=(*self.findings, finding))


@dataclass(frozen=True)
class Gathered:
    artefacts: tuple[Artefact, ...]
    left_out: tuple[tuple[str, str], ...]
    """Winners that no operator can stand for: task id and reason."""


def winners(runs: Iterable[Path], licence: str = "unknown") -> list[Artefact]:
    """Every win, without an operator yet; of one task and machine the best bound alone.

    One kernel that won on several machines is one artefact, with the origin of its best figure.
    """
    found: list[Artefact] = []
    for run in runs:
        with Journal(run, read_only=True) as journal:
            tasks = {task.id: task for task in journal.tasks()}
            found += [
                _artefact(journal, run, tasks[r.task_id], r, licence)
                for r in reports(journal)
                if r.exportable
            ]
    best: dict[tuple[str, tuple[str, ...]], Artefact] = {}
    for each in sorted(found, key=bound):
        best[each.task.hash, tuple(each.decisive)] = each
    kernels: dict[tuple[str, str], Artefact] = {}
    for each in sorted(best.values(), key=bound):
        key = each.task.hash, each.candidate.id
        others = kernels[key].findings if key in kernels else ()
        kernels[key] = replace(each, findings=(*others, *each.findings))
    return sorted(kernels.values(), key=lambda a: (a.task.id, a.candidate.id))


def gather(runs: Iterable[Path], licence: str = "unknown") -> Gathered:
    """The winners with their operators, and those that no operator can stand for."""
    kept = winners(runs, licence)
    seen = interfaces([a.task for a in kept]) if kept else []
    left_out = [(a.task.id, i.refused) for a, i in zip(kept, seen, strict=True) if i.refused]
    able = [replace(a, interface=i) for a, i in zip(kept, seen, strict=True) if i.refused is None]
    for each in [a for a in able if decisive(a).kind not in ORDINARY]:
        left_out.append((each.task.id, f"it is fast by its {decisive(each).kind}, not a kernel"))
        able.remove(each)
    return Gathered(tuple(_named(able)), tuple((task, str(why)) for task, why in left_out))


def decisive(artefact: Artefact) -> Evaluation:
    return artefact.findings[-1].evaluation


def bound(artefact: Artefact) -> float:
    interval = decisive(artefact).speedup
    return 0.0 if interval is None else interval.low


def against_best(evaluation: Evaluation) -> Interval | None:
    """Speedup against B*; None where there is no figure."""
    _, baseline = best_baseline(evaluation.baselines)
    if evaluation.speedup is None or baseline is None:
        return evaluation.speedup
    return evaluation.speedup.divided_by(baseline)


def state_of(artefact: Artefact, finding: Finding, shape: Measured) -> str:
    """`active` where the kernel may run, else why not: what a dispatch table holds."""
    best, ratio = best_baseline(finding.evaluation.baselines)[0], against_best(finding.evaluation)
    found = _state(artefact, finding, shape, best, ratio)
    if found == ACTIVE or not beats_eager(artefact, finding, shape):
        return found
    little = "too little" if ratio is not None and ratio.low > 1 else "not"
    return f"faster than eager, {little} faster than {best}"


def beats_eager(artefact: Artefact, finding: Finding, shape: Measured) -> bool:
    """Whether the kernel may run where it need be faster than eager alone."""
    return _state(artefact, finding, shape, "eager", finding.evaluation.speedup) == ACTIVE


def _state(
    artefact: Artefact, finding: Finding, shape: Measured, baseline: str, ratio: Interval | None
) -> str:
    """With `ratio` the speedup against the baseline."""
    evaluation = finding.evaluation
    if not evaluation.passed:
        return f"{evaluation.status.value} when checked again"
    if shape != artefact.interface.shapes[0]:
        return UNTIMED
    if evaluation.parameters == "seed":
        return "parameters not matched"
    if finding.purpose == "search":
        return "not confirmed"
    if ratio is None or not wins(evaluation):
        return "no win"
    if ratio.low <= 1:
        return f"not faster than {baseline}"
    cost_ms = OPERATOR_MS if finding.operator_ms is None else finding.operator_ms
    if loses(evaluation, ratio, cost_ms, artefact.task.device):
        return "saves less than calling an operator costs"
    return ACTIVE


def loses(evaluation: Evaluation, ratio: Interval, cost_ms: float, device: str) -> bool:
    """Whether calls through an operator may take longer than the baseline that the candidate has
    this speedup against.

    On a GPU the launching thread's time is hidden behind the kernels', where those are long: it is
    what the call costs and no more than as much again for the candidate's own host code (on an H200
    18 to 26 us and 12 to 15).
    """
    timing = evaluation.timing
    if timing is None:
        return True
    candidate_ms, call_ms = timing.candidate_ms, timing.candidate_ms + cost_ms
    if device != "cpu":
        call_ms = max(candidate_ms, min(candidate_ms, cost_ms) + cost_ms)
    return candidate_ms * ratio.low < call_ms


def costed(artefact: Artefact) -> Artefact:
    """With what calling its operator costs on this machine, where a figure of it is from here."""
    device = artefact.task.device
    if device != "cpu" and not torch.cuda.is_available():
        return artefact
    here = artefact.decisive.get(machine(device))
    if here is None:
        return artefact
    inputs = sum(kind == "Tensor" for _, kind in artefact.interface.inputs)
    cost_ms = operator_ms(device, inputs, len(artefact.interface.state), artefact.ordered)
    known = replace(here, operator_ms=round(cost_ms, 5))
    return replace(artefact, findings=tuple(known if f is here else f for f in artefact.findings))


def write_artefact(artefact: Artefact, path: Path) -> None:
    path.write_text(json.dumps(to_record(artefact), indent=1) + "\n")


def read_artefact(path: Path) -> Artefact:
    """Raises ConfigError where the file is not what `write_artefact` wrote."""
    try:
        record = json.loads(path.read_text())
        return from_record(Artefact, record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: no artefact of an export ({error})") from error


def _artefact(
    journal: Journal, run: Path, task: Task, report: TaskReport, licence: str
) -> Artefact:
    assert report.best is not None
    proposal, confirmation = report.best.proposal, report.confirmation
    findings = [Finding("search", f"campaign {run.name}", report.best.evaluation)]
    if confirmation is not None and upheld(report.best.evaluation, confirmation):
        findings.append(Finding("confirm", f"campaign {run.name}", confirmation))
    config = (journal.config() or {}).get("evaluation")
    prompt = proposal.prompt
    return Artefact(
        operator="",
        task=task,
        interface=Interface(),
        candidate=proposal.candidate,
        config=EvalConfig() if config is None else from_record(EvalConfig, config),
        findings=tuple(findings),
        provenance=Provenance(
            run.name,
            proposal.proposer,
            "no model" if prompt is None else "model",
            proposal.strategy,
            proposal.parents,
            None if prompt is None else hashlib.sha256(prompt.encode()).hexdigest(),
            dict(proposal.features),
        ),
        licence=licence,
    )


def _named(artefacts: list[Artefact]) -> list[Artefact]:
    """With operator names: one for all kernels of one reference, unique otherwise."""
    names: dict[str, str] = {}
    named = []
    for artefact in artefacts:
        name = operator_name(artefact.task.id)
        if names.setdefault(name, artefact.reference) != artefact.reference:
            name = f"{name}_{artefact.reference[:6]}"
            names[name] = artefact.reference
        named.append(replace(artefact, operator=name))
    return named


def operator_name(task_id: str) -> str:
    """`builtin/softmax` becomes `softmax`, `kernelbench/level1/19_ReLU` `level1_19_relu`."""
    words = task_id.lower().split("/")
    last = "_".join(words[1:] or words)
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in last).strip("_")
    return plain if plain[:1].isalpha() else f"op_{plain}"
