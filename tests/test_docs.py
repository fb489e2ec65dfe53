"""The pages a user copies from: their commands parse, their links and scripts are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main

from agent.commands.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^ *(?:\$ )?warpsmith ((?:.*\\\n)*.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([\w./-]+)[)#]")
SCRIPT = re.compile(r"python (?:-m )?(benchmarks[./][\w./]+)")


def commands() -> Iterator[object]:
    """Of code blocks, fenced or indented; options of the user's own choice stay as they are."""
    for page in PAGES:
        for found in COMMAND.finditer(page.read_text(encoding="utf-8")):
            line = found[1].replace("\\\n", " ")
            yield pytest.param(line, id=f"{page.name}: {line[:60]}")


def parse(line: str) -> None:
    """As the shell and then the front door would; nothing is run."""
    words = shlex.split(line, comments=True)
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"no command {name!r}"
        command, context = found, click.Context(found, parent=context)
    command.make_context(command.name, words, parent=context.parent)


@pytest.mark.parametrize("line", list(commands()))
def test_every_command_of_the_pages_parses(line: str) -> None:
    parse(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_script_of_a_page_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = [page.parent / target for target in LINK.findall(text)]
    named = [ROOT / name.removesuffix(".py").replace(".", "/") for name in SCRIPT.findall(text)]
    missing = [path for path in linked if not path.exists()]
    missing += [path for path in named if not (path.is_dir() or path.with_suffix(".py").exists())]
    assert not missing


def test_what_the_servers_environment_asks_for_is_locked() -> None:
    asked, locked = (
        {line for line in file.read_text().splitlines() if not line.startswith("#")}
        for file in (ROOT / "configs" / "vllm" / f"requirements.{end}" for end in ("in", "txt"))
    )
    assert asked <= locked
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in locked)
