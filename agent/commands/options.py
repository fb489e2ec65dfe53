"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from agent.limits import ABOVE_0, FieldError, Least
from sandbox.errors import ConfigError

Number = TypeVar("Number", bound=float | None)


def _resolved(device: str) -> str:
    """A GPU that is not there is refused before anything else is read."""
    from sandbox.doctor import resolve_device

    return resolve_device(device)


def bounded(least: Least) -> Callable[[typer.CallbackParam, Number], Number]:
    """Callback of an option: a number that is too small is refused before anything starts."""

    def refuse(param: typer.CallbackParam, number: Number) -> Number:
        try:
            least.refuse(param.opts[0], number)
        except FieldError as error:
            raise ConfigError(str(error)) from error
        return number

    return refuse


Config = Annotated[str | None, typer.Option(help="A YAML file or a preset.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.", callback=_resolved)]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Of this call.", callback=bounded(ABOVE_0))]
Preset = Annotated[str, typer.Option(help="quick, strict, kernelbench or a file.")]
Seconds = Annotated[
    float | None, typer.Option(help="Begin nothing after so long.", callback=bounded(Least(0)))
]
Strategy = Annotated[str | None, typer.Option(help="A preset, such as evolve, or a file.")]
To = Annotated[Path, typer.Option(help="Folder to write.")]
