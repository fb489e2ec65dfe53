"""Words and figures in a line for a reader."""

from __future__ import annotations


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
