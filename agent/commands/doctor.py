"""`warpsmith doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

import warpsmith


def doctor(
    model: Annotated[str | None, typer.Option(help="Ask this model once as well.")] = None,
) -> None:
    """What this machine has, what is missing, and the command that mends it."""
    from rich.console import Console

    from agent.models.probing import probe
    from agent.runs import RUNS
    from sandbox.doctor import examine
    from sandbox.doctor_view import findings_table

    findings = examine(RUNS) + ([] if model is None else probe(model))
    Console().print(findings_table(findings))
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(warpsmith.FAILED)
