"""An audit for a reader: per winner the figures, reasons, doubts, evidence, origin and source."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from agent.journals.audit import Audit, Measured, Origin, RunAudit
from agent.views.console import fitting, widened
from agent.views.progress import NO_MODEL
from agent.views.tables import interval_text

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
        for table in (evidence_table, lineage_table):
            console.print(fitting(console, table(winner), table(winner, narrow=True)))
        say(console, environment_lines(winner))
    for winner in audit.audits if sources else ():
        console.print()
        name = f"# {winner.task_id} {winner.candidate_id} sha256 {winner.source_sha256}"
        say(console, [name], "bold")
        code = Syntax(winner.source, "python", background_color="default")
        console.print(code.highlight(winner.source), soft_wrap=True, end="")


def say(console: Console, lines: Iterable[str], style: str = "") -> None:
    """Lines as they are, without markup; in a terminal broken between words, never within one."""
    for line in lines:
        told = wrapped(line, console.width) if console.is_terminal else line
        console.print(Text(told, style=style), soft_wrap=True)


def wrapped(line: str, width: int) -> str:
    """What goes on stands under the first word."""
    indent = " " * (len(line) - len(line.lstrip(" +!")))
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


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


def evidence_table(winner: Audit, *, narrow: bool = False) -> Table:
    """What each layer saw, of every evaluation; equal words once."""
    table = Table(title="evidence", title_justify="left")
    names = ("layer", "weight", "facts", "purpose")
    for name in names[:3] if narrow else names:
        table.add_column(name, overflow="fold", no_wrap=name == "weight")
    rows: dict[tuple[str, str, str], list[str]] = {}
    for m in winner.measured:
        for found in m.evidence:
            key = (found.layer, found.weight, "\n".join(found.facts) or "-")
            rows.setdefault(key, []).append(m.purpose)
    for (layer, weight, facts), purposes in rows.items():
        cells = (Text(weight, style=STYLES.get(weight, "red")), Text(facts))
        why = ", ".join(purposes)
        table.add_row(f"{layer}\n  {why}", *cells) if narrow else table.add_row(layer, *cells, why)
    if not rows:
        table.add_row("-", "-", "no layer's evidence is recorded")
    return table


def lineage_table(winner: Audit, *, narrow: bool = False) -> Table:
    table = Table(title="origin", title_justify="left")
    rows = [origin_row(origin) for origin in winner.lineage]
    names = rows[0] if rows else {}
    for name in ("candidate", "origin") if narrow else ("candidate", *names):
        no_wrap = name == "speedup" or (narrow and name == "candidate")
        table.add_column(name, overflow="fold", no_wrap=no_wrap)
    for origin, row in zip(winner.lineage, rows, strict=True):
        told = ", ".join(f"{name} {value}" for name, value in row.items() if value != "-")
        table.add_row(origin.candidate_id, *((told,) if narrow else row.values()))
    return table


def origin_row(origin: Origin) -> dict[str, str]:
    """One candidate's, by what is told of it."""
    return {
        "round": str(origin.round),
        "by": NO_MODEL if origin.proposer == "features" else origin.proposer,
        "strategy": origin.strategy or "-",
        "status": origin.status or "-",
        "speedup": "-" if origin.speedup is None else f"{origin.speedup:.2f}x",
        "parents": " ".join(origin.parents) or "-",
        "prompt sha256": "-" if origin.prompt_sha256 is None else origin.prompt_sha256[:16],
    }


def environment_lines(winner: Audit) -> list[str]:
    """Each environment that it was measured in, once."""
    found = {tuple(sorted(m.environment.items())): None for m in winner.measured}
    return ["  environment: " + ", ".join(f"{k} {v}" for k, v in items) for items in found]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
