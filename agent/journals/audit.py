"""Why a reader may believe a run's speedups, or not: pure views of journal rows.

For each task's best candidate: every evaluation it ever had, what each layer of defence saw, how
its confirmation agrees with the search, where it comes from, and the doubts that follow. Evidence
is shown as it was recorded; nothing is measured again. An audit trusts the journal: it cannot
tell a journal that was edited.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.confirm import agree, promising
from agent.journals.journal import Journal, Measurement
from agent.journals.outcome import TaskReport, reports
from agent.journals.recorded import Purpose, Recorded
from sandbox.figures import Interval
from sandbox.records import from_record
from sandbox.types import Status
from sandbox.words import number_of

SCHEMA_VERSION = 1
ENOUGH_PAIRS = 3
TRUSTED_MATCHES = ("none", "name", "order")
"""Ways to match parameters under which they were randomised and overwritten."""
CLEAN = ("clean", "noted")
"""Weights of evidence that say nothing against a candidate."""


@dataclass(frozen=True)
class Evidence:
    """What one layer recorded."""

    layer: str
    weight: str
    facts: tuple[str, ...]

    @property
    def against(self) -> bool:
        return self.weight not in CLEAN


@dataclass(frozen=True)
class Measured:
    """One evaluation of the candidate."""

    purpose: str
    at_s: float
    status: str
    config_id: str
    cases: int
    cases_passed: int
    worst_norm: float | None
    """The largest norm error over all cases."""
    precision: str | None
    parameters: str
    reference_ms: float | None
    candidate_ms: float | None
    speedup: Interval | None
    noise_floor: float | None
    pairs: int
    rounds: int
    sets: int
    baselines: Mapping[str, str]
    """Against each: the speedup, or why there is none."""
    kind: str | None
    """What makes it fast, where that was recorded."""
    evidence: tuple[Evidence, ...]
    environment: Mapping[str, str]

    @property
    def walls(self) -> str:
        return self.environment.get("walls", "")


@dataclass(frozen=True)
class Origin:
    """A proposal of the candidate's line, the candidate itself first."""

    candidate_id: str
    proposer: str
    strategy: str
    round: int
    parents: tuple[str, ...]
    features: Mapping[str, str | int]
    prompt_sha256: str | None
    status: str
    speedup: float | None


@dataclass(frozen=True)
class Audit:
    """One task's best candidate."""

    task_id: str
    task_hash: str
    candidate_id: str
    language: str
    custom_kernel: bool
    verdict: str
    """As `warpsmith show` says it."""
    reasons: tuple[str, ...]
    """Why the figure may be believed: what was checked and held."""
    doubts: tuple[str, ...]
    """What a reader should know before believing it; empty where there is nothing."""
    measured: tuple[Measured, ...]
    lineage: tuple[Origin, ...]
    source_sha256: str
    source: str


@dataclass(frozen=True)
class Coverage:
    """Of one language over the whole run."""

    language: str
    tried: int
    passed: int
    wins: int


@dataclass(frozen=True)
class RunAudit:
    run: str
    audits: tuple[Audit, ...]
    others: Mapping[str, str]
    """Tasks without a candidate to audit, and the verdict."""
    coverage: tuple[Coverage, ...]
    statuses: Mapping[str, int]
    """Of all candidates searched."""
    schema_version: int = field(default=SCHEMA_VERSION)


def audit_run(journal: Journal) -> RunAudit:
    """Everything `warpsmith audit` shows of a run."""
    hashes = {task.id: task.hash for task in journal.tasks()}
    audits, others, records = [], {}, []
    for report in reports(journal):
        recorded = journal.proposals(report.task_id)
        records += [(r, report) for r in recorded if r.evaluation is not None]
        if report.best is None or not promising(report.best.evaluation):
            others[report.task_id] = report.verdict
            continue
        measurements = journal.measurements(report.best.proposal.candidate.id)
        audits.append(audit(report, hashes[report.task_id], recorded, measurements))
    return RunAudit(
        journal.folder.name, tuple(audits), others, coverage(records), statuses(records)
    )


def audit(
    report: TaskReport,
    task_hash: str,
    recorded: Sequence[Recorded],
    measurements: Sequence[Measurement],
) -> Audit:
    """Of one task whose best candidate is promising."""
    assert report.best is not None
    candidate = report.best.proposal.candidate
    measured = tuple(map(measured_of, measurements))
    return Audit(
        task_id=report.task_id,
        task_hash=task_hash,
        candidate_id=candidate.id,
        language=candidate.language.value,
        custom_kernel=candidate.language.custom_kernel,
        verdict=report.verdict,
        reasons=tuple(reasons(measured)),
        doubts=tuple(doubts(measured)),
        measured=measured,
        lineage=lineage(candidate.id, recorded),
        source_sha256=hashlib.sha256(candidate.source.encode()).hexdigest(),
        source=candidate.source,
    )


def measured_of(measurement: Measurement) -> Measured:
    """From the record as written: fields that its version lacks are left empty."""
    record = measurement.record
    timing = record.get("timing") or {}
    cases = record.get("cases") or []
    norms = [c["norm_error"] for c in cases if c.get("norm_error") is not None]
    speedup = _interval(timing.get("speedup"))
    return Measured(
        purpose=measurement.purpose,
        at_s=measurement.at_s,
        status=record["status"],
        config_id=record["config_id"],
        cases=len(cases),
        cases_passed=sum(bool(case.get("passed")) for case in cases),
        worst_norm=max(norms, default=None),
        precision=record.get("precision"),
        parameters=record.get("parameters", ""),
        reference_ms=timing.get("reference_ms"),
        candidate_ms=timing.get("candidate_ms"),
        speedup=speedup,
        noise_floor=timing.get("noise_floor"),
        pairs=len(timing.get("pairs") or []),
        rounds=sum(pair.get("rounds", 0) for pair in timing.get("pairs") or []),
        sets=timing.get("sets", 0),
        baselines={b["name"]: _against(speedup, b) for b in record.get("baselines") or []},
        kind=record.get("kind"),
        evidence=tuple(map(_evidence, record.get("evidence") or record.get("findings") or [])),
        environment=record.get("environment") or {},
    )


def reasons(measured: Sequence[Measured]) -> list[str]:
    """What was checked and held, in the figure that is shown."""
    shown = figure(measured)
    if shown is None or shown.status != Status.PASSED:
        return []
    said = [
        f"{shown.cases_passed} of {shown.cases} cases agree with the float64 truth, "
        f"worst norm error {_number(shown.worst_norm)} ({shown.precision} class)"
    ]
    if shown.parameters in ("name", "order"):
        words = "parameters were randomised, overwritten between batches, and matched"
        said.append(f"{words} by {shown.parameters}")
    if shown.speedup is not None and shown.rounds:
        rounds = number_of(shown.rounds, "timed round")
        sets = number_of(shown.sets, "fresh input set")
        pairs = number_of(shown.pairs, "process pair")
        said.append(f"{rounds} of up to {sets} on {pairs}; every timed output was compared")
    if shown.speedup is not None and shown.noise_floor is not None:
        beyond = math.log(shown.speedup.value) / max(shown.noise_floor, 1e-9)
        said.append(
            f"speedup {shown.speedup}; its logarithm is {beyond:.1f} times the task's noise floor "
            f"({shown.noise_floor:.3f}, the reference against itself)"
        )
    clean = [e.layer for e in shown.evidence if not e.against]
    if clean:
        said.append(f"nothing against it from {', '.join(clean)}")
    if shown.walls:
        said.append(f"walls: {shown.walls}")
    return said


def doubts(measured: Sequence[Measured]) -> list[str]:
    """What speaks against the figure, or is missing behind it."""
    shown, searched = figure(measured), _last(measured, Purpose.SEARCH)
    confirmed = _last(measured, Purpose.CONFIRM)
    if shown is None:
        return ["no evaluation is recorded"]
    said = []
    if confirmed is None:
        said.append("not confirmed: the figure is the one that it was selected by")
    elif confirmed.status != Status.PASSED:
        said.append(f"the confirmation ended as {confirmed.status}")
    elif (
        searched is not None
        and (before := searched.speedup)
        and (after := confirmed.speedup)
        and not agree(before, after)
    ):
        ratio = after.value / before.value
        said.append(f"the confirmation gives {ratio:.2f} times the speedup of the search")
    if shown.speedup is not None and shown.speedup.low <= 1:
        said.append(f"the interval {shown.speedup} reaches 1")
    if shown.speedup is not None and math.log(shown.speedup.value) <= (shown.noise_floor or 0.0):
        said.append(f"the speedup lies within the task's noise floor ({shown.noise_floor:.3f})")
    if shown.pairs < ENOUGH_PAIRS:
        pairs = number_of(shown.pairs, "process pair")
        said.append(f"{pairs}; a reported win has {ENOUGH_PAIRS} at least")
    if shown.parameters not in TRUSTED_MATCHES:
        said.append(f"parameters matched by {shown.parameters or 'nothing that was recorded'}")
    if shown.walls != "full":
        said.append(f"walls: {shown.walls or 'not recorded'}; full is what isolates")
    for found in shown.evidence:
        if found.against:
            said.append(f"{found.layer}: {'; '.join(found.facts) or found.weight}")
    failed = [m for m in measured if m.status != Status.PASSED and m is not confirmed]
    said += [f"an evaluation for {m.purpose} ended as {m.status}" for m in failed]
    changed = sorted({k for m in measured for k in _differing(m.environment, shown.environment)})
    if changed:
        said.append(f"evaluations differ in {', '.join(changed)}")
    return said


def figure(measured: Sequence[Measured]) -> Measured | None:
    """The evaluation whose figures are shown: the confirmation where there is one."""
    return _last(measured, Purpose.CONFIRM) or _last(measured, Purpose.SEARCH)


def lineage(candidate_id: str, recorded: Sequence[Recorded]) -> tuple[Origin, ...]:
    """The candidate's own proposal and those of its parents, breadth first, each once."""
    first: dict[str, Recorded] = {}
    for row in recorded:
        first.setdefault(row.proposal.candidate.id, row)
    found: dict[str, Origin] = {}
    waiting = [candidate_id]
    while waiting:
        name = waiting.pop(0)
        if name in found or name not in first:
            continue
        row = first[name]
        evaluation, prompt = row.evaluation, row.proposal.prompt
        speedup = None if evaluation is None else evaluation.speedup
        found[name] = Origin(
            candidate_id=name,
            proposer=row.proposal.proposer,
            strategy=row.proposal.strategy,
            round=row.round,
            parents=row.proposal.parents,
            features=row.proposal.features,
            prompt_sha256=None if prompt is None else hashlib.sha256(prompt.encode()).hexdigest(),
            status="" if evaluation is None else evaluation.status.value,
            speedup=None if speedup is None else speedup.value,
        )
        waiting += row.proposal.parents
    return tuple(found.values())


def coverage(records: Sequence[tuple[Recorded, TaskReport]]) -> tuple[Coverage, ...]:
    """How many candidates of each language were searched, passed and won."""
    rows = []
    for language in sorted({r.proposal.candidate.language.value for r, _ in records}):
        own = [(r, t) for r, t in records if r.proposal.candidate.language.value == language]
        wins = [
            t
            for r, t in own
            if t.best is not None
            and t.confirmed
            and t.best.proposal.candidate.id == r.proposal.candidate.id
        ]
        passed = sum(r.evaluation is not None and r.evaluation.passed for r, _ in own)
        rows.append(Coverage(language, len(own), passed, len(wins)))
    return tuple(rows)


def statuses(records: Sequence[tuple[Recorded, TaskReport]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record, _ in records:
        if record.evaluation is not None:
            name = record.evaluation.status.value
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _evidence(record: Mapping[str, Any]) -> Evidence:
    """Of a layer in either form: weight and facts, or a suspicion and a detail."""
    weight = record.get("weight") or ("suspicious" if record.get("suspicious") else "clean")
    facts = record.get("facts") or ([record["detail"]] if record.get("detail") else [])
    return Evidence(str(record.get("layer", "?")), str(weight), tuple(map(str, facts)))


def _interval(record: Mapping[str, Any] | None) -> Interval | None:
    return None if record is None else from_record(Interval, record)


def _against(speedup: Interval | None, baseline: Mapping[str, Any]) -> str:
    own = _interval(baseline.get("speedup"))
    if own is None:
        return str(baseline.get("detail") or "not timed")
    return "not timed" if speedup is None else str(speedup.divided_by(own))


def _last(measured: Sequence[Measured], purpose: Purpose) -> Measured | None:
    return next((m for m in reversed(measured) if m.purpose == purpose.value), None)


def _differing(left: Mapping[str, str], right: Mapping[str, str]) -> list[str]:
    return [key for key in {**left, **right} if left.get(key) != right.get(key)]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2g}"
