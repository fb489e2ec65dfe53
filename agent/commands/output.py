"""What commands print: answers on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

import warpsmith
from sandbox.words import visible

if TYPE_CHECKING:
    from rich.console import Console

    from agent.journals.outcome import CampaignResult


def note(line: str) -> None:
    """On stderr. What a candidate says in it cannot steer the terminal."""
    typer.echo(visible(line), err=True)


def say(lines: Iterable[object]) -> None:
    """On stdout, likewise."""
    typer.echo(visible("\n".join(map(str, lines))))


def answer(found: object, as_json: bool, show: Callable[[Console], object]) -> None:
    """On stdout: what was found as one line of JSON, or as `show` prints it for a reader."""
    from agent.views.console import open_console
    from sandbox.records import to_record

    if as_json:
        typer.echo(json.dumps(to_record(found)))
    else:
        show(open_console())


def say_how_to_go_on(result: CampaignResult, name: str) -> None:
    if result.unfinished:
        note(f"to go on: the same command with --name {name}")


@contextmanager
def going_on(by: str) -> Iterator[None]:
    """Ctrl-C in the block ends the command, with what goes on from where it was. Of several
    processes that a launcher started the first one tells.
    """
    try:
        yield
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            note(f"to go on: {by}")
        raise typer.Exit(warpsmith.INTERRUPTED) from None


def exit_if_interrupted(result: CampaignResult) -> None:
    if result.interrupted:
        raise typer.Exit(warpsmith.INTERRUPTED)


def command_again(context: typer.Context, **changed: object) -> str:
    """The command line under way, for a shell, with these parameters in place of its own."""
    words = ["warpsmith", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        typed = source is not None and source.name == "COMMANDLINE"
        value = changed.get(name, context.params[name] if typed else None)
        option = [parameter.opts[0]] if parameter.param_type_name == "option" else []
        if value is True:
            words += option
        elif value is not None:
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [*option, str(each)]
    return shlex.join(words)
