"""Words and figures in a line for a reader."""

from __future__ import annotations

import re
import unicodedata

PERHAPS_HIDDEN = re.compile(r"[^\n\t -~]")
"""Most texts have none, and are told so fast."""
HIDDEN = ("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp")
"""Unicode categories without a glyph: controls, formats, private use, surrogates, unassigned."""


def shortened(text: str, characters: int) -> str:
    """Its first line, ended after a whole word and with an ellipsis where there is more."""
    first = text.strip().partition("\n")[0].rstrip()
    if first == text.strip() and len(first) <= characters:
        return first
    if len(first) >= characters:
        head = first[:characters]  # one more than stays: a word may end right there
        first = head.rpartition(" ")[0].rstrip() or head[:-1]
    return f"{first}…"


def number_of(count: int, noun: str) -> str:
    """`1 task`, `3 tasks`, `1,200 replies`."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {plural}"


def visible(text: str) -> str:
    """With each character that has no glyph as ⟨U+202E⟩, but for line ends and tabs.

    What a candidate, a model or a server wrote may hold characters that steer a terminal, that a
    reader cannot see or that turn the direction of the line (Boucher and Anderson 2021,
    CVE-2021-42574).
    """
    return PERHAPS_HIDDEN.sub(_shown, text.replace("\r\n", "\n"))


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    hidden = unicodedata.category(character) in HIDDEN
    return f"⟨U+{ord(character):04X}⟩" if hidden else character
