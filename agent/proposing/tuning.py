"""Tunable constants that a candidate declares, and its variants. Pure text; nothing is run.

A line that sets a number and ends in a comment with the values worth trying declares one:

    THREADS = 256  # tune: 128, 256, 512, 1024
    #define TILE 32  // tune: 16, 32, 64
    constexpr int STAGES = 2;  // tune: 1, 2, 3, 4

anywhere in the file, strings with kernels included. A variant differs in the numbers before these
comments and in nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.types import Candidate, digest

NUMBER = r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?"
DECLARED = re.compile(
    rf"^(?P<head>[^\n]*?\b(?P<name>[A-Za-z_]\w*)(?:\s*=\s*|\s+))(?P<value>{NUMBER})"
    rf"(?P<tail>\w{{0,3}}[ \t]*(?:[;,][ \t]*)?(?:\#|//)\s*tune\s*:\s*"
    rf"(?P<values>{NUMBER}(?:\s*,\s*{NUMBER})*)\s*)$",
    re.MULTILINE,
)
MOST_CONSTANTS, MOST_VALUES = 8, 16
"""Of one candidate; what is declared beyond them is left as it is."""


@dataclass(frozen=True)
class Tunable:
    name: str
    value: str
    """As the source has it."""
    values: tuple[str, ...]
    """Worth trying, ascending; the source's own is one of them."""


@dataclass(frozen=True)
class Template:
    """A candidate with the numbers of its tunable constants left out."""

    candidate: Candidate
    tunables: tuple[Tunable, ...]

    @property
    def key(self) -> str:
        """Equal for the variants of one program, whoever wrote them."""
        blank = _filled(self.candidate.source, {t.name: "?" for t in self.tunables})
        return digest([self.candidate.task_id, self.candidate.language.value, blank])

    @property
    def point(self) -> dict[str, str]:
        """Where the candidate itself lies."""
        return {tunable.name: tunable.value for tunable in self.tunables}

    @property
    def pool(self) -> dict[str, tuple[str, ...]]:
        """Every value worth trying, by name."""
        return {tunable.name: tunable.values for tunable in self.tunables}

    def at(self, point: Mapping[str, str]) -> Candidate:
        """The variant with these values."""
        candidate = self.candidate
        source = _filled(candidate.source, point)
        return Candidate(candidate.task_id, candidate.language, source)


def template(candidate: Candidate) -> Template | None:
    """None where nothing is declared; of a name declared twice the first line counts."""
    found: dict[str, Tunable] = {}
    for line in DECLARED.finditer(candidate.source):
        own = line["value"]
        values = {value.strip() for value in line["values"].split(",")} | {own}
        listed = tuple(sorted(values, key=lambda value: (float(value), value)))
        if line["name"] not in found and 1 < len(listed) <= MOST_VALUES:
            found[line["name"]] = Tunable(line["name"], own, listed)
    return Template(candidate, tuple(found.values())[:MOST_CONSTANTS]) if found else None


def _filled(source: str, values: Mapping[str, str]) -> str:
    """The source with these numbers at the first declaration of each name."""
    left = dict(values)

    def fill(line: re.Match[str]) -> str:
        value = left.pop(line["name"], None)
        return line[0] if value is None else f"{line['head']}{value}{line['tail']}"

    return DECLARED.sub(fill, source)
