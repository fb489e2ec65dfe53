"""The console our tables are printed on."""

from __future__ import annotations

import os

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PLAIN_WIDTH = 160
"""Of tables that do not go to a terminal."""
UNBOUNDED = 10_000
"""A width that every table fits in."""


def open_console() -> Console:
    """On stdout; as wide as the terminal, or as `widened` says where there is none. A name that
    looks like markup is a name.
    """
    return widened(Console(markup=False))


def widened(console: Console) -> Console:
    """The same console; where it is no terminal, as wide as COLUMNS says, or PLAIN_WIDTH."""
    if not console.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        console.width = (int(columns) if columns.isdecimal() else 0) or PLAIN_WIDTH
    return console


def fitting(console: Console, wide: Table, narrow: Table) -> Table:
    """The wide one where no cell of it needs a second line."""
    needed = Measurement.get(console, console.options.update(max_width=UNBOUNDED), wide).maximum
    return wide if needed <= console.width else narrow
