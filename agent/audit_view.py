"""An audit for a reader: per winner the figures, reasons, doubts, evidence, origin and source."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from agent.audit import Audit, Measured, RunAudit
from agent.console import widened
from agent.progress import NO_MODEL
from agent.tables import interval_text

STYLES = {"clean": "green", "noted": "yellow"}


def show_audit(console: Console, audit: RunAudit, *, sources: bool = True) -> None:
    """Everything but the sources in tables; those last, each in full."""
    say(widened(console), run_lines(audit))
    for winner in audit.audits:
        console.print()
        console.print(Text(f"{winner.task_id}  {winner.candidate_id}", style="bold"))
        say(console, header_lines(winner))
        say(console, (f"  + {reason}" for reason in winner.reasons), "green")
        say(console, (f"  ! {doubt}" for doubt in winner.doubts), "yellow")
        console.print(measured_table(winner))
        console.print(evidence_table(winner))
        console.print(lineage_table(winner))
        say(console, environment_lines(winner))
    for winner in audit.audits if sources else ():
        console.print()
        name = f"# {winner.task_id} {winner.candidate_id} sha256 {winner.source_sha256}"
        say(console, [name], "bold")
        console.print(Syntax(winner.source, "python", background_color="default"))


def say(console: Console, lines: Iterable[str], style: str = "") -> None:
    """Lines as they are: no markup, no wrapping at cells."""
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def run_lines(audit: RunAudit) -> list[str]:
    doubtful = sum(bool(winner.doubts) for winner in audit.audits)
    lines = [f"run: {audit.run} · {len(audit.audits)} to audit, {doubtful} with doubts"]
    for found in audit.coverage:
        lines.append(
            f"  {found.language}: {found.tried} tried, {found.passed} passed, {found.wins} won"
        )
    counts = ", ".join(f"{n} {status}" for status, n in audit.statuses.items())
    lines.append(f"  candidates: {counts or 'none'}")
    lines += [f"  {task_id}: {verdict}" for task_id, verdict in audit.others.items()]
    return lines


def header_lines(winner: Audit) -> list[str]:
    shown = winner.measured[-1] if winner.measured else None
    kind = shown.kind if shown is not None and shown.kind else None
    what = kind or ("custom kernel" if winner.custom_kernel else "PyTorch-level rewrite")
    return [f"  {winner.verdict} · {winner.language}, {what} · task {winner.task_hash}"]


def measured_table(winner: Audit) -> Table:
    """A column for each evaluation of the candidate, which are few."""
    table = Table(title="evaluations", title_justify="left", show_header=False)
    shown = [measured_rows(m) for m in winner.measured]
    for name in shown[0] if shown else ():
        table.add_row(name, *(rows[name] for rows in shown))
    for column in table.columns:
        column.overflow = "fold"
    return table


def measured_rows(measured: Measured) -> dict[str, str | Text]:
    """One evaluation, by what is told of it."""
    m = measured
    return {
        "when": time.strftime("%m-%d %H:%M:%S", time.localtime(m.at_s)),
        "purpose": m.purpose,
        "status": m.status,
        "vs eager": interval_text(m.speedup),
        "against": baselines(m),
        "ms": number(m.candidate_ms),
        "eager ms": number(m.reference_ms),
        "pairs": str(m.pairs),
        "rounds": str(m.rounds),
        "sets": str(m.sets),
        "cases": f"{m.cases_passed}/{m.cases}",
        "norm error": number(m.worst_norm),
        "precision": m.precision or "-",
        "parameters": m.parameters,
        "walls": m.walls or "-",
    }


def baselines(measured: Measured) -> str:
    return "\n".join(f"{name}: {words}" for name, words in measured.baselines.items()) or "-"


def evidence_table(winner: Audit) -> Table:
    """What each layer saw, of every evaluation; equal words once."""
    table = Table(title="evidence", title_justify="left")
    for name in ("layer", "weight", "facts", "purpose"):
        table.add_column(name, overflow="fold", no_wrap=name == "weight")
    rows: dict[tuple[str, str, str], list[str]] = {}
    for m in winner.measured:
        for found in m.evidence:
            key = (found.layer, found.weight, "\n".join(found.facts) or "-")
            rows.setdefault(key, []).append(m.purpose)
    for (layer, weight, facts), purposes in rows.items():
        style = STYLES.get(weight, "red")
        table.add_row(layer, Text(weight, style=style), Text(facts), ", ".join(purposes))
    if not rows:
        table.add_row("-", "-", "no layer's evidence is recorded", "-")
    return table


def lineage_table(winner: Audit) -> Table:
    table = Table(title="origin", title_justify="left")
    names = ("candidate", "round", "by", "strategy", "status", "speedup", "parents")
    for name in (*names, "prompt sha256"):
        table.add_column(name, overflow="fold", no_wrap=name == "speedup")
    for origin in winner.lineage:
        table.add_row(
            origin.candidate_id,
            str(origin.round),
            NO_MODEL if origin.proposer == "features" else origin.proposer,
            origin.strategy or "-",
            origin.status or "-",
            "-" if origin.speedup is None else f"{origin.speedup:.2f}x",
            " ".join(origin.parents) or "-",
            "-" if origin.prompt_sha256 is None else origin.prompt_sha256[:16],
        )
    return table


def environment_lines(winner: Audit) -> list[str]:
    """Each environment that it was measured in, once."""
    found = {tuple(sorted(m.environment.items())): None for m in winner.measured}
    return ["  environment: " + ", ".join(f"{k} {v}" for k, v in items) for items in found]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
