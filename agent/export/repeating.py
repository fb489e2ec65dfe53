"""Whether a kernel's source is certain to give equal calls equal results, bit for bit, by its text.

The judge compares repeated calls up to what atomics may reorder, so that it says nothing of this.
What is not certain counts as not repeating: under `torch.use_deterministic_algorithms(True)` the
reference then does its work. A race that the judge did not meet is not seen here either.
"""

from __future__ import annotations

import re

UNCERTAIN = re.compile(
    r"atom"  # atomicAdd, tl.atomic_add, std::atomic, PTX
    r"|\bred[.:]|reduce[._]async"
    r"|autotune"  # another choice in another process sums in another order
    r"|\bomp\b|std::(j?thread|async|execution)|pthread|parallel_(for|reduce)"
    r"|\b(cu)?rand|\bclock|threading|concurrent",
    re.IGNORECASE,
)
"""Sums whose order another call may change, choices that are made anew, and chance."""


def repeats(source: str) -> bool:
    """False where any of it is named, also in a comment."""
    return UNCERTAIN.search(source) is None
