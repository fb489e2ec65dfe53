"""A benchmark of `warpsmith` commands, in pieces: what has ended is not run again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

OVERHEAD_S = 60.0
"""Of a boxed step, outside its box: imports, a context, what is under way when the time is over."""


@dataclass(frozen=True)
class Step:
    name: str
    command: list[str]
    box_s: float | None = None
    """Time it is given in all; None for a step that ends by itself."""
    expected_s: float = 0.0
    """From start to end on one GPU, where that is known better than by its box: with less left it
    waits for another call, as far as one is so long."""
    result: Path | None = None
    """What is there once it has ended, though a kill came before its end was noted."""

    def ended(self, to: Path) -> bool:
        """Whether it needs no further call."""
        return self.noted(to).exists() or (self.result is not None and self.result.is_file())

    def noted(self, to: Path) -> Path:
        """The file that holds its seconds."""
        return to / f"{self.name}.done"


class Failed(Exception):
    """Of a command."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class Runs(Protocol):
    """What runs a command: Relay."""

    def run(self, command: Sequence[str]) -> int:
        """Its exit code."""
        ...


def run_steps(
    steps: Callable[[], Sequence[Step]],
    to: Path,
    relay: Runs,
    *,
    piece_s: float,
    began_s: float,
    before: Callable[[Step], None] = lambda _: None,
) -> str | None:
    """Every step that has not ended, while the piece lasts; returns the name of the one that waits
    for another call, if any. `steps` is asked again before each: what ends a stage is known only
    once it has ended. `before` hears of a step that is about to run. Raises Failed.
    """
    for place in range(len(steps())):
        step = steps()[place]
        if step.ended(to):
            continue
        left_s = began_s + piece_s - time.monotonic()
        wanted_s = step.expected_s or (step.box_s or 0.0) + OVERHEAD_S
        if left_s < min(wanted_s, 0.9 * piece_s):
            return step.name
        before(step)
        step.noted(to).write_text(f"{run_step(step, left_s, relay):.1f}")
    return None


def run_step(step: Step, left_s: float, relay: Runs) -> float:
    """Seconds it took; raises Failed where it did."""
    box_s = None if step.box_s is None else min(step.box_s, left_s)
    command = [*step.command, *(["--max-seconds", f"{box_s:.0f}"] if box_s else [])]
    print(f"== {step.name}: warpsmith {' '.join(command)}", flush=True)
    began_s = time.monotonic()
    code = relay.run(command)
    if code:
        raise Failed(code)
    return time.monotonic() - began_s


def seconds_of(steps: Sequence[Step], to: Path) -> Mapping[str, float]:
    """Of each whose end was noted."""
    noted = {step.name: step.noted(to) for step in steps}
    return {name: float(file.read_text()) for name, file in noted.items() if file.exists()}
