"""Many texts that share most of their lines, stored once each: sources, prompts, replies, logs.

Prompts repeat the rules, the task and the exemplars' sources, and candidates repeat each other, far
beyond the window of the page's compression. A text is a list of runs of line numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sandbox.words import visible


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
