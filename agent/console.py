"""The console our tables are printed on."""

from __future__ import annotations

from rich.console import Console

PLAIN_WIDTH = 160
"""Of tables that do not go to a terminal: no cell is cut."""


def open_console() -> Console:
    """On stdout; as wide as the terminal, or as PLAIN_WIDTH where there is none."""
    return widened(Console())


def widened(console: Console) -> Console:
    """The same console, set to PLAIN_WIDTH where it is no terminal."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console
