"""Figures in a sentence."""

from __future__ import annotations


def number_of(count: int, noun: str) -> str:
    """`1 task`, `3 tasks`, `1,200 replies`."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {plural}"
