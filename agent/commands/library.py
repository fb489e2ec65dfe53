"""From winners to a library, and between a library and a model of the user's."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

import warpsmith
from agent.commands.options import Device, Json, To, bounded
from agent.commands.output import note, say
from agent.limits import Least


def export(
    runs: list[str],
    to: To,
    format: Annotated[
        list[str],
        typer.Option(help="modelnew, package, kernels, kernelbench or flashinfer; also several."),
    ] = ["modelnew"],  # noqa: B006  typer reads it
    package: Annotated[str, typer.Option(help="Its import name.")] = "tuned_kernels",
    licence: Annotated[str, typer.Option(help="Of the kernels, SPDX.")] = "unknown",
    arch: Annotated[
        list[str] | None, typer.Option(help="Compile cuda kernels ahead for it too: sm_90.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Write the winners of runs as files, as a package with dispatch, or for other tools."""
    archs = arch or ()
    say(
        warpsmith.export(
            *(runs, to),
            format=format,
            package=package,
            licence=licence,
            archs=archs,
            device=device,
            tell=note,
        )
    )


def revalidate(folder: Path, device: Device = "auto") -> None:
    """Judge an exported package's kernels again here; exits with 1 unless all still win."""
    from agent.export.revalidate import lines

    outcomes = warpsmith.revalidate(folder, device=device)
    say(lines(outcomes))
    if not all(outcome.verdict.fine for outcome in outcomes):
        raise typer.Exit(warpsmith.FAILED)


def extract(
    model: Annotated[Path, typer.Argument(metavar="MODEL.py")],
    to: To,
    top: Annotated[
        int, typer.Option(help="So many tasks, the costliest first.", callback=bounded(Least(1)))
    ] = 8,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write the costliest operators and fusible regions of a model as tasks for `optimize`."""
    from agent.extraction.report import lines
    from sandbox.records import to_record

    found = warpsmith.extract(model, to, top=top, device=device)
    if as_json:
        typer.echo(json.dumps(to_record(found.extraction) | {"files": list(map(str, found.files))}))
    else:
        optimize = shlex.join(["warpsmith", "optimize", str(to)])
        say([*lines(found.extraction, found.names), f"to go on: {optimize}"])


def apply(
    model: Annotated[Path, typer.Argument(metavar="MODEL.py")],
    library: Annotated[str, typer.Option(help="Exported folder, or an installed package.")],
    pairs: Annotated[
        int, typer.Option(help="Fresh processes behind the interval.", callback=bounded(Least(2)))
    ] = 4,
    device: Device = "auto",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Time it under torch.compile too.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Put a library's operators into a model; exits with 1 if none of them stays."""
    from agent.substitution.report import lines
    from sandbox.records import to_record

    found = warpsmith.apply(
        model, library, pairs=pairs, device=device, compiled=compiled, tell=note
    )
    say([json.dumps(to_record(found))] if as_json else lines(found))
    if not found.kept:
        raise typer.Exit(warpsmith.FAILED)
