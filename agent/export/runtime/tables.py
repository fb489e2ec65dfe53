"""The dispatch table for readers."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from agent.export.runtime import records, switches
from agent.export.runtime.dispatch import Dispatch
from agent.export.runtime.machine import machine

HEADER = ("operator", "shape", "machine", "eager", "best baseline", "precision", "here", "from")


def table(library: records.Library, dispatches: Sequence[Dispatch]) -> str:
    """One line for each operator, signature and machine; `here` says what a call would use."""
    present = machines()
    lines = [HEADER]
    for dispatch in dispatches:
        for row in dispatch.operator.rows:
            lines.append(
                (
                    dispatch.operator.name,
                    row.shape,
                    row.machine,
                    ratio(row.speedup),
                    against_best(row),
                    row.precision,
                    used(row, present, dispatch),
                    row.checked,
                )
            )
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    rendered = [
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    unverified = [
        o.name for o in library.operators if not any(r.machine in present for r in o.rows)
    ]
    if unverified:
        rendered.append(f"unverified on this machine (the reference runs): {', '.join(unverified)}")
    for name in (switches.off_name(library.prefix), switches.against_name(library.prefix)):
        rendered.append(f"{name}={os.environ.get(name, '')}")
    return "\n".join(rendered)


def against_best(row: records.Row) -> str:
    """`1.42x [1.40, 1.44] (compile)`; no baseline is named for what was not timed beside one."""
    figure = ratio(row.against_best)
    return figure if row.against_best is None else f"{figure} ({row.best_baseline})"


def used(row: records.Row, present: set[str], dispatch: Dispatch) -> str:
    if row.machine not in present:
        return "reference: another machine"
    if not dispatch.uses(row):
        return f"reference: {row.state}"
    if not dispatch.on:
        return "reference: switched off"
    return "kernel" if row.active else f"kernel: {row.state}"


def machines() -> set[str]:
    count = torch.cuda.device_count()
    return {machine("cpu"), *(machine("cuda", index) for index in range(count))}


def ratio(triple: tuple[float, float, float] | None) -> str:
    """`1.42x [1.40, 1.44]`."""
    return "-" if triple is None else "{:.2f}x [{:.2f}, {:.2f}]".format(*triple)
