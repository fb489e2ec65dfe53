"""One candidate's source, read without running it: Python first, then the C++ in its strings.

Refuses only what is never legitimate; all else is evidence. It does not hold against names that are
made up at run time: process split, verified values and timing do.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass

from sandbox.static import cpp, python

SOURCE_LIMIT_BYTES = 2 << 20
"""Far above any kernel, and half of what one frame to a worker holds
(sandbox/machine/channel.py)."""


@dataclass(frozen=True)
class Scan:
    """What the source shows; every field is empty for source that Python refuses to parse."""

    refused: str = ""
    facts: tuple[str, ...] = ()
    """Readable: operators, libraries, streams, threads, graphs."""
    kernels: tuple[str, ...] = ()
    """Names of the device kernels it defines (CUDA C++ and Triton)."""
    graphs: bool = False


def scan(source: str) -> Scan:
    """Why the source cannot be a candidate, if so, and what else is in it. A syntax error is the
    build's to report.
    """
    if not source.strip():
        return Scan("the source is empty; expected a Python file that defines class ModelNew")
    size = len(json.dumps(source))  # as it travels to a worker
    if size > SOURCE_LIMIT_BYTES:
        return Scan(f"the source has {size} bytes as JSON; the limit is {SOURCE_LIMIT_BYTES}")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Scan()
    except (RecursionError, MemoryError):  # what the parser raises at its own stack limit
        return Scan("the source is nested too deeply for Python's parser")
    if not python.defines(tree, "ModelNew"):
        first = source.strip().splitlines()[0][:200]
        return Scan(
            f"no class ModelNew; expected the reference's Model rewritten under that name ({first})"
        )
    try:
        seen = python.read(tree)
    except RecursionError:
        return Scan("the source is nested too deeply to be read")
    device = [cpp.read(text) for text in seen.texts if cpp.looks_like_code(text)]
    refused = seen.refused or next((found.refused for found in device if found.refused), "")
    return Scan(
        refused=refused,
        facts=_joined([*seen.facts, *(fact for found in device for fact in found.facts)]),
        kernels=tuple(
            dict.fromkeys([*seen.kernels, *(name for found in device for name in found.kernels)])
        ),
        graphs=seen.graphs or any(found.graphs for found in device),
    )


def _joined(facts: list[tuple[str, str]]) -> tuple[str, ...]:
    """`(topic, name)` pairs as one line a topic: `torch operators: matmul, relu`."""
    topics: dict[str, dict[str, None]] = {}
    for topic, name in facts:
        topics.setdefault(topic, {})[name] = None
    return tuple(
        f"{topic}: {', '.join(list(names)[:LISTED])}{', ...' if len(names) > LISTED else ''}"
        for topic, names in topics.items()
    )


LISTED = 16
"""Names in one line of evidence."""
