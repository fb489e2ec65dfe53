"""What the user of an export should know of it at once: wins that a format leaves out, operators
whose kernels no call uses by default, and those measured on another machine.

Told of the manifests as written, so that nothing is said that they do not hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from agent.export.artefact import ACTIVE, UNTIMED
from agent.export.folder import MANIFEST
from agent.export.runtime.switches import Against, against_name
from agent.export.runtime.tables import machines

LIBRARIES = ("package", "kernels")


def notices(folders: Mapping[str, Path], package: str) -> list[str]:
    """A line each, of the folders by format; equal ones of two formats once."""
    records = {name: json.loads((place / MANIFEST).read_text()) for name, place in folders.items()}
    told = [
        f"--format {name} leaves out {task}: {why}"
        for name, record in records.items()
        for task, why in record.get("left_out", {}).items()
    ]
    present = machines()
    for record in (record for name, record in records.items() if name in LIBRARIES):
        told += _unused(record["kernels"], package, present)
    return list(dict.fromkeys(told))


def _unused(kernels: list[dict[str, Any]], package: str, present: Set[str]) -> Iterator[str]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for kernel in kernels:
        timed = [row for row in kernel["used"] if row["state"] != UNTIMED]
        rows.setdefault(kernel["operator"], []).extend(timed)
    idle = {name: own for name, own in rows.items() if not any(map(_active, own))}
    if len(idle) == len(rows):
        yield "no operator runs its kernel by default: every call is the reference's"
    for name, own in rows.items():
        if name in idle:
            states = "; ".join(dict.fromkeys(str(row["state"]) for row in own))
            switch = f"{against_name(package)}={Against.EAGER}"
            beats = any(row["beats_eager"] for row in own)
            yield f"{name}: the reference runs: {states}" + (
                f" ({switch} runs it)" if beats else ""
            )
        measured = sorted({str(row["machine"]) for row in own})
        if not present & set(measured):
            remedy = "on any other the reference runs until warpsmith revalidate"
            yield f"{name}: measured on {', '.join(measured)}; {remedy}"


def _active(row: Mapping[str, Any]) -> bool:
    return bool(row["state"] == ACTIVE)
