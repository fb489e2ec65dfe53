"""A cell's drawing of an interval on a log axis that all rows share: SVG, no script needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from agent.report.page import Row

WIDTH, HEIGHT = 130, 18
"""Pixels, as page.css has them."""
MARGIN = 5
LETTER = 6.0
"""Pixels of a label's letter, at page.css's size; so much is left between two labels too."""
ROOM = 1.25


@dataclass(frozen=True)
class Scale:
    """Ratios to pixels."""

    low: float
    high: float

    def x(self, ratio: float) -> float:
        share = math.log(ratio / self.low) / math.log(self.high / self.low)
        return round(MARGIN + (WIDTH - 2 * MARGIN) * min(1.0, max(0.0, share)), 1)


def scale_of(rows: Sequence[Row]) -> Scale:
    """That holds every value and eager, with room for intervals; very wide ones run off it."""
    known = [row.speedup.value for row in rows if row.speedup is not None]
    return Scale(min([0.8, *known]) / ROOM, max([1.6, *known]) * ROOM)


def glyph(row: Row, scale: Scale) -> Markup:
    """Eager's line, a baseline's mark, the interval and its value; nothing without a figure."""
    if row.speedup is None:
        return Markup("")
    low, value, high = (scale.x(v) for v in (row.speedup.low, row.speedup.value, row.speedup.high))
    one, parts = scale.x(1.0), []
    parts.append(f'<line class="one" x1="{one}" x2="{one}" y1="0" y2="{HEIGHT}"/>')
    other = row.baselines.get("compile") or max(row.baselines.values(), default=None)
    if other:
        at = scale.x(other)
        parts.append(f'<line class="other" x1="{at}" x2="{at}" y1="4" y2="14"/>')
    parts.append(f'<line class="range" x1="{low}" x2="{high}" y1="9" y2="9"/>')
    parts.append(f'<circle class="value" cx="{value}" cy="9" r="3.4"/>')
    return _svg(parts, row.state.value, str(row.speedup))


def axis(scale: Scale) -> Markup:
    """Labels at powers of two, few enough not to touch."""
    first, last = math.ceil(math.log2(scale.low)), math.floor(math.log2(scale.high))
    shown: list[tuple[float, str]] = []
    for step in range(1, last - first + 2):
        powers = [2.0**k for k in range(first, last + 1) if k % step == 0]
        shown = [(scale.x(p), f"{p:g}x") for p in powers]
        if all(b - a >= _room(one, other) for (a, one), (b, other) in pairwise(shown)):
            break
    return _svg([f'<text x="{x}" y="14">{word}</text>' for x, word in shown], "", "axis")


def _room(one: str, other: str) -> float:
    """Between the middles of two labels."""
    return LETTER * ((len(one) + len(other)) / 2 + 1)


def _svg(parts: Sequence[str], css: str, label: str) -> Markup:
    head = f'<svg class="{css}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    return Markup(head + "".join(parts) + "</svg>")
