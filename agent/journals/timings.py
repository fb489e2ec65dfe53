"""Where a campaign's time goes: seconds by stage, how long lanes are held, what waits."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.table import Table

from agent.journals.journal import Journal
from agent.journals.recorded import Recorded
from sandbox.types import Evaluation
from sandbox.words import number_of

EVENT = "pulse"
"""Of the journal: a `Pulse` as JSON."""
RECORD_S = 10.0
BESIDE = ("prepare", "build", "load", "wait")
"""Stages of an evaluation that go on beside others; `wait` is for a task that is prepared alone,
and then for the device."""
HELD = ("open", "verify", "start", "warm", "time", "profile", "other")
"""Those for which it holds its lane's device, which it is paid for; `other` is what the device was
held for outside the stages before it."""
STAGES = (*BESIDE, *HELD)
TOTAL = "total"
WHOLE = ("held", "rest", TOTAL)
"""What an evaluation adds up to; no stages."""


@dataclass(frozen=True)
class Pulse:
    """One look at a running campaign; everything since this call of it began."""

    elapsed_s: float = 0.0
    lanes: int = 1
    evaluations: int = 0
    held_s: float = 0.0
    """Device seconds of these evaluations in the stages of HELD; preparing tasks is apart."""
    queues: Mapping[str, int] = field(default_factory=dict)
    """Jobs by what they wait for or are in."""

    @property
    def per_minute(self) -> float:
        return 60 * self.evaluations / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def held_share(self) -> float:
        """Of the lanes' time."""
        return self.held_s / (self.elapsed_s * self.lanes) if self.elapsed_s else 0.0

    def __str__(self) -> str:
        waiting = ", ".join(f"{count} {name}" for name, count in self.queues.items() if count)
        rate = f"{self.per_minute:.1f} candidates/min, devices held {self.held_share:.0%}"
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
            rates = {"per_minute": pulse.per_minute, "held_share": pulse.held_share}
            self._journal.record_event(EVENT, detail=json.dumps({**asdict(pulse), **rates}))


def held_seconds(evaluation: Evaluation) -> float:
    """For which this evaluation held its device."""
    return sum(evaluation.seconds.get(stage, 0.0) for stage in HELD)


def device_name(evaluation: Evaluation) -> str:
    """The GPU that measured it, or the CPU."""
    known = evaluation.environment
    return known.get("gpu") or known.get("cpu") or known.get("device") or "unknown"


def evaluations(records: Sequence[Recorded]) -> list[Evaluation]:
    """Searches and confirmations, in the order of their proposals."""
    return [e for r in records for e in (r.evaluation, r.confirmation) if e is not None]


def timings(journal: Journal) -> dict[str, Any]:
    """JSON-ready: by device, seconds of each stage; the last pulse of every call of the run; and
    seconds by stage for which each task was prepared when that was done first.
    """
    tasks = journal.tasks()
    done = [e for task in tasks for e in evaluations(journal.proposals(task.id))]
    measured = {task.id: journal.measured(task.id) for task in tasks}
    devices: dict[str, Any] = {}
    for name in sorted({device_name(e) for e in done}):
        mine = [e for e in done if device_name(e) == name]
        devices[name] = {"evaluations": len(mine), "stages": stages(mine)}
    return {
        "devices": devices,
        "prepared_s": {k: dict(m.seconds) for k, m in measured.items() if m is not None},
        "pulses": [json.loads(p) for p in journal.last_of_calls(EVENT)],
    }


def stages(done: Sequence[Evaluation]) -> dict[str, dict[str, float]]:
    """Count, total, median and most seconds of every stage that was reached.

    Then of what evaluations add up to: `held` is the stages of HELD, `rest` what no stage names
    (the ends of workers, a first attempt that was a fault of ours), `total` from call to answer.
    """
    known = [whole(e) for e in done]
    others = sorted({stage for seconds in known for stage in seconds} - {*STAGES, *WHOLE})
    names = (*STAGES, *others, *WHOLE)
    found = {name: [s[name] for s in known if name in s] for name in names}
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


def whole(evaluation: Evaluation) -> dict[str, float]:
    """Its seconds by stage, and those of WHOLE that can be told."""
    seconds = dict(evaluation.seconds)
    total_s, told_s = seconds.pop(TOTAL, None), sum(seconds.values())
    seconds["held"] = held_seconds(evaluation)
    return seconds if total_s is None else seconds | {"rest": total_s - told_s, TOTAL: total_s}


def timing_tables(record: Mapping[str, Any]) -> list[Table | str]:
    """What `show --timings` prints: by device, then of every call that evaluated anything."""
    shown: list[Table | str] = []
    for device, known in record["devices"].items():
        title = f"{device}: {number_of(known['evaluations'], 'evaluation')}"
        table = Table(title=title, title_justify="left")
        for name in ("stage", "reached by", "total s", "median s", "most s"):
            table.add_column(name, justify="left" if name == "stage" else "right", overflow="fold")
        for stage, s in known["stages"].items():
            if stage == WHOLE[0]:
                table.add_section()
            figures = (f"{s[key]:.2f}" for key in ("total_s", "median_s", "most_s"))
            table.add_row(stage, str(s["count"]), *figures)
        shown.append(table)
    shown += _prepared_lines(record["prepared_s"].values())
    return [*shown, *call_lines([pulse_of(pulse) for pulse in record["pulses"]])]


def _prepared_lines(prepared: Collection[Mapping[str, float]]) -> Iterator[str]:
    here = [seconds for seconds in prepared if seconds]
    if here:
        by_stage = Counter[str]()
        for seconds in here:
            by_stage.update(seconds)
        told = ", ".join(f"{name} {s:.0f}" for name, s in by_stage.most_common() if s >= 1)
        line = (
            f"{number_of(len(here), 'task')} prepared, the first time in {by_stage.total():.0f} s"
        )
        yield f"{line} ({told})" if told else line
    if known := len(prepared) - len(here):
        yield f"{number_of(known, 'task')} known from an earlier run"


def pulse_of(record: Mapping[str, Any]) -> Pulse:
    return Pulse(**{k: v for k, v in record.items() if k in Pulse.__dataclass_fields__})


def call_lines(calls: Sequence[Pulse]) -> list[str]:
    """A line for every call, of its last pulse; a resume with nothing to do is none of them."""
    told = [(number, p) for number, p in enumerate(calls, start=1) if p.evaluations]
    return [
        f"{f'call {number}: ' if len(calls) > 1 else ''}"
        f"after {p.elapsed_s:.0f} s on {number_of(p.lanes, 'lane')}: {p}"
        for number, p in told or list(enumerate(calls, start=1))[-1:]
    ]
