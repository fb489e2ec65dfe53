"""What a user decides: whether an operator's kernels are used, and what they must be faster than.

The environment says it when an operator is first used, `KernelLibrary.switch` at any time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.export.runtime.records import LibraryError

logger = logging.getLogger(__name__)


class Against(StrEnum):
    """What a kernel must be faster than, to be used."""

    BEST = "best"
    """Every way to run the reference that was measured: eager, torch.compile, a CUDA graph."""
    EAGER = "eager"
    """The reference as it is: what runs instead where nothing is compiled."""


@dataclass(frozen=True)
class Switches:
    """Of one operator."""

    on: bool = True
    against: Against = Against.BEST
    variable: str = ""
    """Of the environment, that sets `against`; empty where none does."""


DEFAULT = Switches()


def from_environment(prefix: str, name: str) -> Switches:
    """`PREFIX_OFF=softmax,matmul` or `=all`, and `PREFIX_AGAINST=eager`, as they are now.

    Raises LibraryError for a word that is neither `eager` nor `best`.
    """
    off = _off(prefix)
    variable = against_name(prefix)
    word = os.environ.get(variable, "").strip()
    least = against(word, variable) if word else Against.BEST
    return Switches(not {"all", name} & off, least, variable)


def warn_of_strangers(prefix: str, names: Sequence[str]) -> None:
    """A misspelt name switches nothing off: that must not go unseen."""
    for word in sorted(_off(prefix) - {"", "all", *names}):
        logger.warning(
            "%s names %r, which is no operator here: expected all, or some of %s",
            *(off_name(prefix), word, ", ".join(names)),
        )


def _off(prefix: str) -> set[str]:
    return {word.strip() for word in os.environ.get(off_name(prefix), "").split(",")}


def against(word: str, setting: str) -> Against:
    """Raises LibraryError that names the setting."""
    try:
        return Against(word)
    except ValueError:
        expected = " or ".join(repr(a.value) for a in Against)
        raise LibraryError(f"{setting} is {word!r}; expected {expected}") from None


def off_name(prefix: str) -> str:
    return f"{prefix.upper()}_OFF"


def against_name(prefix: str) -> str:
    return f"{prefix.upper()}_AGAINST"
