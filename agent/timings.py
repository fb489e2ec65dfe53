"""Where a campaign's time goes: seconds by stage, how busy its lanes are, what waits."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.table import Table

from agent.journal import Journal, Recorded
from sandbox.types import Evaluation

EVENT = "pulse"
"""Of the journal: a `Pulse` as JSON."""
RECORD_S = 10.0
BUSY = ("verify", "warm", "time")
"""Stages for which a lane's device is held; building and loading go on beside them."""
STAGES = (
    *("prepare", "build", "load", "wait"),
    *("open", "verify", "start", "warm", "time", "other", "total"),
)
"""`other` is what the device was held for outside the stages from `open` on."""


@dataclass(frozen=True)
class Pulse:
    """One look at a running campaign; everything since this call of it began."""

    elapsed_s: float = 0.0
    lanes: int = 1
    evaluations: int = 0
    held_s: float = 0.0
    """Device seconds of these evaluations in the stages of BUSY."""
    queues: Mapping[str, int] = field(default_factory=dict)
    """Jobs by what they wait for or are in."""

    @property
    def per_minute(self) -> float:
        return 60 * self.evaluations / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def busy_share(self) -> float:
        """Of the lanes' time."""
        return self.held_s / (self.elapsed_s * self.lanes) if self.elapsed_s else 0.0

    def __str__(self) -> str:
        waiting = ", ".join(f"{count} {name}" for name, count in self.queues.items() if count)
        rate = f"{self.per_minute:.1f} candidates/min, devices {self.busy_share:.0%} busy"
        return f"{rate}; {waiting}" if waiting else rate


class Heart:
    """Keeps a campaign's pulse: tells it at every beat, records it now and then and at the end."""

    def __init__(self, journal: Journal, lanes: int, tell: Callable[[Pulse], None]) -> None:
        self._journal, self._tell = journal, tell
        self._pulse = Pulse(lanes=lanes)
        self._began_s = self._recorded_s = time.monotonic()

    def count(self, evaluation: Evaluation) -> None:
        """One more is finished."""
        known = self._pulse
        held_s = known.held_s + held_seconds(evaluation)
        self._pulse = replace(known, evaluations=known.evaluations + 1, held_s=held_s)

    def beat(self, queues: Mapping[str, int], *, last: bool = False) -> None:
        now_s = time.monotonic()
        self._pulse = pulse = replace(self._pulse, elapsed_s=now_s - self._began_s, queues=queues)
        self._tell(pulse)
        if last or now_s - self._recorded_s >= RECORD_S:
            self._recorded_s = now_s
            rates = {"per_minute": pulse.per_minute, "busy_share": pulse.busy_share}
            self._journal.record_event(EVENT, detail=json.dumps({**asdict(pulse), **rates}))


def held_seconds(evaluation: Evaluation) -> float:
    """For which this evaluation held its device."""
    return sum(evaluation.seconds.get(stage, 0.0) for stage in BUSY)


def device_name(evaluation: Evaluation) -> str:
    """The GPU that measured it, or the CPU."""
    known = evaluation.environment
    return known.get("gpu") or known.get("cpu") or known.get("device") or "unknown"


def evaluations(records: Sequence[Recorded]) -> list[Evaluation]:
    """Searches and confirmations, in the order of their proposals."""
    return [e for r in records for e in (r.evaluation, r.confirmation) if e is not None]


def timings(journal: Journal) -> dict[str, Any]:
    """JSON-ready: by device, seconds of each stage; and the last pulse of every call of the run."""
    done = [e for task in journal.tasks() for e in evaluations(journal.proposals(task.id))]
    devices: dict[str, Any] = {}
    for name in sorted({device_name(e) for e in done}):
        mine = [e for e in done if device_name(e) == name]
        devices[name] = {"evaluations": len(mine), "stages": stages(mine)}
    return {"devices": devices, "pulses": [json.loads(p) for p in journal.events(EVENT)]}


def stages(done: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
    """Count, total, median and most seconds of every stage that was reached."""
    names = [*STAGES, *sorted({s for e in done for s in e.seconds} - {*STAGES})]
    found = {name: [e.seconds[name] for e in done if name in e.seconds] for name in names}
    return {
        name: {
            "count": len(seconds),
            "total_s": sum(seconds),
            "median_s": statistics.median(seconds),
            "most_s": max(seconds),
        }
        for name, seconds in found.items()
        if seconds
    }


def timing_tables(record: Mapping[str, Any]) -> list[Table | str]:
    """What `show --timings` prints."""
    shown: list[Table | str] = []
    for device, known in record["devices"].items():
        title = f"{device}: {known['evaluations']} evaluations"
        table = Table(title=title, title_justify="left")
        for name in ("stage", "reached by", "total s", "median s", "most s"):
            table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
        for stage, s in known["stages"].items():
            figures = (f"{s[key]:.2f}" for key in ("total_s", "median_s", "most_s"))
            table.add_row(stage, str(s["count"]), *figures)
        shown.append(table)
    for pulse in record["pulses"][-1:]:
        kept = Pulse(**{k: v for k, v in pulse.items() if k in Pulse.__dataclass_fields__})
        shown.append(f"after {kept.elapsed_s:.0f} s on {kept.lanes} lanes: {kept}")
    return shown
