"""Many texts that share most of their lines, stored once each: sources, prompts, replies, logs.

Prompts repeat the rules, the task and the exemplars' sources, and candidates repeat each other, far
beyond the window of the page's compression. A text is a list of runs of line numbers.

What a candidate or a model wrote may hold characters that a reader cannot see or that turn the
direction of the line (Boucher and Anderson 2021, CVE-2021-42574): they are made visible here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

PERHAPS_HIDDEN = re.compile(r"[^\n\t -~]")
"""Most texts have none, and are told so fast."""
HIDDEN = ("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp")
"""Unicode categories without a glyph: controls, formats, private use, surrogates, unassigned."""


class Texts:
    """Append-only; `record` is what the page needs to put the texts together again."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}
        self._texts: list[list[int]] = []
        self._known: dict[tuple[int, ...], int] = {}

    def add(self, text: str) -> int:
        """The number of a text as a reader may see it; of an equal one the same."""
        return self.add_lines(visible(text).split("\n"))

    def add_lines(self, lines: Iterable[str]) -> int:
        """Of lines that are fit to be shown already."""
        runs: list[int] = []
        for line in lines:
            number = self._lines.setdefault(line, len(self._lines))
            if runs and runs[-2] + runs[-1] == number:
                runs[-1] += 1
            else:
                runs += [number, 1]
        key = tuple(runs)
        if key not in self._known:
            self._known[key] = len(self._texts)
            self._texts.append(runs)
        return self._known[key]

    def record(self) -> dict[str, Any]:
        """JSON-ready: every distinct line, and each text as first line, count, first line, ..."""
        return {"lines": list(self._lines), "texts": self._texts}


def visible(text: str) -> str:
    """With each character that has no glyph as ⟨U+202E⟩, but for line ends and tabs."""
    return PERHAPS_HIDDEN.sub(_shown, text.replace("\r\n", "\n"))


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    hidden = unicodedata.category(character) in HIDDEN
    return f"⟨U+{ord(character):04X}⟩" if hidden else character
