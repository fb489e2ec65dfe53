"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _resolved(device: str) -> str:
    """A GPU that is not there is refused before anything else is read."""
    from sandbox.doctor import resolve_device

    return resolve_device(device)


Config = Annotated[str | None, typer.Option(help="A YAML file or a preset.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.", callback=_resolved)]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Of this call.")]
Preset = Annotated[str, typer.Option(help="quick, strict, kernelbench or a file.")]
Strategy = Annotated[str | None, typer.Option(help="A preset, such as evolve, or a file.")]
To = Annotated[Path, typer.Option(help="Folder to write.")]
