"""What a worker says of itself, cut to its known form: short, printable, never trusted."""

from __future__ import annotations

from typing import Any

from sandbox.observation import RuntimeClaim

LONGEST_WORD, LONGEST_LINE = 100, 200
"""Characters kept of a claimed word, and of a line that describes a kernel."""
MOST_BYTES = 1 << 50
"""No device has more: whoever divides by a number of any length gets no float."""
MOST_WORDS = 32
"""Of one list that a worker claims."""


def runtime_claim(claim: dict[str, Any]) -> RuntimeClaim:
    """The reply to `facts`; whatever is not of its form is left out, since it only ever hurts."""
    peak = claim.get("peak_device_bytes")
    return RuntimeClaim(
        patched=words(claim.get("patched")),
        flags=words(claim.get("flags")),
        peak_device_bytes=peak if isinstance(peak, int) and 0 <= peak < MOST_BYTES else None,
        kernels=words(claim.get("kernels"), LONGEST_LINE),
    )


def words(claimed: object, longest: int = LONGEST_WORD) -> tuple[str, ...]:
    listed = claimed if isinstance(claimed, list) else []
    return tuple(word(item, longest) for item in listed[:MOST_WORDS])


def word(claimed: object, longest: int = LONGEST_WORD) -> str:
    """Short and printable: it ends up in the verdict's one line."""
    return ascii(str(claimed))[1:-1][:longest]
