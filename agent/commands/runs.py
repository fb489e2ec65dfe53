"""What a run recorded: shown, reported, audited, decided again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import warpsmith
from agent.commands.options import Json
from agent.commands.output import answer, say
from sandbox.words import number_of


def report(
    run: Annotated[str, typer.Argument(help="A run or a bench: its name or folder.")],
    to: Annotated[Path | None, typer.Option(help="File; report.html in its folder else.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A summary for a README; on stdout without --to.")
    ] = False,
    reference: Annotated[
        list[Path] | None, typer.Option(help="A bench whose fast_p is drawn beside its own.")
    ] = None,
) -> None:
    """What a campaign or a bench has found so far, as one page that needs no network."""
    from agent.report.find import summary_of

    if markdown and to is None:
        typer.echo(summary_of(run, reference or ()), nl=False)
    else:
        typer.echo(warpsmith.report(run, to, markdown=markdown, references=reference or ()))


def replay(
    run: str, name: Annotated[str | None, typer.Option(help="Of the new run.")] = None
) -> None:
    """Decide a run again from its journal: no network, no device; exits with 1 if it differs."""
    from rich.console import Console

    from agent.views.progress import show_result

    result, found = warpsmith.replay(run, name=name)
    show_result(Console(), result, f"replay of {run}")
    say([*found, f"different: {number_of(len(found), 'task')}" if found else "the same decisions"])
    if found:
        raise typer.Exit(warpsmith.FAILED)


def show(
    run: str,
    as_json: Json = False,
    with_timings: Annotated[
        bool,
        typer.Option("--timings", help="Seconds by stage and device, how long it was held."),
    ] = False,
) -> None:
    """What a run has found so far."""
    from agent.runs import find_run
    from agent.views.show import overview_record, read_overview, show_overview

    found = read_overview(find_run(run))
    record = overview_record(found, with_timings=with_timings)
    answer(record, as_json, lambda c: show_overview(c, found, with_timings=with_timings))


def audit(
    run: str,
    as_json: Json = False,
    sources: Annotated[bool, typer.Option(help="Print each winner's source.")] = True,
) -> None:
    """Why each winner's speedup may be believed, or not: evaluations, evidence, origin, source."""
    from agent.journals.audit import audit_run
    from agent.journals.journal import Journal
    from agent.runs import find_run
    from agent.views.audit_view import show_audit

    with Journal(find_run(run), read_only=True) as journal:
        found = audit_run(journal)
    answer(found, as_json, lambda c: show_audit(c, found, sources=sources))
