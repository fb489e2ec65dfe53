"""Compilers that were ended from outside, by what they say: that another took all memory says
nothing of what they compiled.
"""

from __future__ import annotations

KILLED = (
    "Killed signal",  # gcc's driver
    "died due to signal 9",  # nvcc
    "Cannot allocate memory",
    "out of memory allocating",
    "Resource temporarily unavailable",
)


def was_killed(words: str) -> bool:
    """Whether such a refusal may not come again; it is not to be remembered."""
    return any(sign in words for sign in KILLED)
