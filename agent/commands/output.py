"""What commands print: answers on stdout, everything else on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from agent.outcome import CampaignResult

note = partial(typer.echo, err=True)


def say(lines: Iterable[object]) -> None:
    typer.echo("\n".join(map(str, lines)))


def answer(found: object, as_json: bool, show: Callable[[Console], object]) -> None:
    """On stdout: what was found as one line of JSON, or as `show` prints it for a reader."""
    from agent.console import open_console
    from sandbox.records import to_record

    if as_json:
        typer.echo(json.dumps(to_record(found)))
    else:
        show(open_console())


def say_how_to_go_on(result: CampaignResult, name: str) -> None:
    if result.stopped is not None:
        note(f"to go on: the same command with --name {name}")
