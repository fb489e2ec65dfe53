"""Every kernel of a library judged again on this machine; the dispatch table follows.

A fault of ours changes nothing in the table, but is told and fails the command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from agent.confirm import wins
from agent.export.artefact import (
    ACTIVE,
    Artefact,
    Finding,
    Gathered,
    against_best,
    costed,
    read_artefact,
    state_of,
)
from agent.export.folder import check_writable, format_of
from agent.export.manifest import read_manifest
from agent.export.package import export_package
from agent.export.runtime.machine import machine_of
from sandbox.errors import ConfigError
from sandbox.figures import Interval
from sandbox.types import Evaluation, Evaluator


class Verdict(StrEnum):
    """What became of a kernel."""

    PASSES = "passes"
    """As fast as it was, or first measured on this machine and faster than B*."""
    DRIFTS = "drifts"
    """Still faster than B*, but its interval no longer meets the recorded one."""
    REGRESSES = "regresses"
    """Correct, and no longer (or not here) faster than B*: the reference does its work, unless the
    user asks for what is faster than eager alone.
    """
    INVALID = "invalid"
    """No longer passes: the reference does its work."""
    UNJUDGED = "not judged"
    """A fault of ours, or a device this machine lacks."""

    @property
    def fine(self) -> bool:
        return self in (Verdict.PASSES, Verdict.DRIFTS)


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    artefact: Artefact
    before: Evaluation | None
    """What was known on this machine; None where it is new to the kernel."""
    after: Evaluation | None
    verdict: Verdict
    detail: str = ""


def revalidate(
    folder: Path,
    device: str,
    make_evaluator: Callable[[], Evaluator],
) -> list[Outcome]:
    """Judge every kernel again and write the library anew.

    Raises ConfigError for a damaged one or one that cannot be written, before an evaluator is made.
    """
    found = format_of(folder)
    if found not in (None, "package"):
        remedy = "expected a library: warpsmith export RUN --to DIR --format package"
        raise ConfigError(f"{folder}: is an export of --format {found}; {remedy}")
    record = read_manifest(folder)
    # What was put beside them since is nobody's evidence.
    paths = [folder / name for name in record["files"] if name.startswith("artefacts/")]
    if "package" not in record or not paths:
        raise ConfigError(f"{folder}: no library; expected what `export --format package` wrote")
    artefacts = [read_artefact(path) for path in paths]
    check_writable(folder)
    with closing(make_evaluator()) as evaluator:
        outcomes = [_check(artefact, device, evaluator) for artefact in artefacts]
    left_out = tuple((str(k), str(v)) for k, v in record.get("left_out", {}).items())
    updated = tuple(map(_updated, outcomes))
    archs = [str(arch) for arch in record.get("archs", [])]
    export_package(Gathered(updated, left_out), folder, record["package"], archs)
    return [_placed(*pair) for pair in zip(outcomes, updated, strict=True)]


def compare(before: Evaluation | None, after: Evaluation) -> Verdict:
    """What the new figure says beside the one that was recorded on the same machine."""
    if not after.status.scored:
        return Verdict.UNJUDGED
    if not after.passed:
        return Verdict.INVALID
    ratio = against_best(after)
    if ratio is None or ratio.low <= 1 or not wins(after):
        return Verdict.REGRESSES
    known = None if before is None else before.speedup
    if known is None or after.speedup is None or _meet(known, after.speedup):
        return Verdict.PASSES
    return Verdict.DRIFTS


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The table, one line a kernel and a sum."""
    header = ("operator", "kernel", "before", "now", "against B*", "verdict")
    rows = [header, *map(_cells, outcomes)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    told = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    counts = (
        f"{verdict.value}: {sum(o.verdict is verdict for o in outcomes)}" for verdict in Verdict
    )
    return [*told, ", ".join(counts)]


def _check(artefact: Artefact, device: str, evaluator: Evaluator) -> Outcome:
    if artefact.task.device != device:
        reason = f"needs {artefact.task.device}"
        return Outcome(artefact, None, None, Verdict.UNJUDGED, reason)
    after = evaluator.evaluate(artefact.task, artefact.candidate, artefact.config)
    here = artefact.decisive.get(machine_of(after.environment))
    before = None if here is None else here.evaluation
    return Outcome(artefact, before, after, compare(before, after), after.detail)


def _placed(outcome: Outcome, updated: Artefact) -> Outcome:
    """With the reason where the table still gives the calls of a kernel that passed to others."""
    if outcome.after is None or outcome.verdict not in (Verdict.PASSES, Verdict.DRIFTS):
        return outcome
    finding = updated.decisive[machine_of(outcome.after.environment)]
    state = state_of(updated, finding, updated.interface.shapes[0])
    if state == ACTIVE:
        return outcome
    return replace(outcome, detail=f"the reference does its calls: {state}")


def _updated(outcome: Outcome) -> Artefact:
    if outcome.after is None or outcome.verdict is Verdict.UNJUDGED:
        return outcome.artefact
    checked = f"revalidated {time.strftime('%Y-%m-%d')}"
    return costed(outcome.artefact.noted(Finding("revalidate", checked, outcome.after)))


def _cells(outcome: Outcome) -> tuple[str, ...]:
    def ratio(interval: Interval | None) -> str:
        return "-" if interval is None else str(interval)

    before, after = outcome.before, outcome.after
    return (
        outcome.artefact.operator,
        outcome.artefact.candidate.id,
        "new here" if before is None else ratio(before.speedup),
        "-" if after is None else ratio(after.speedup),
        "-" if after is None else ratio(against_best(after)),
        outcome.verdict.value + (f": {outcome.detail}" if outcome.detail else ""),
    )


def _meet(one: Interval, other: Interval) -> bool:
    return one.low <= other.high and other.low <= one.high
