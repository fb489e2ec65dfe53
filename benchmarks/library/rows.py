"""What was found of one operator: its checks, and its time beside the campaign's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.export.artefact import ACTIVE, Artefact, against_best, beats_eager, state_of
from benchmarks.library.times import Process, processes
from sandbox.checking.bounds import CLASS_NORM
from sandbox.figures import Interval
from sandbox.judging.statistics import Null, interval
from sandbox.types import EvalConfig

NOWHERE = "nowhere"
LONG_MS, CLOSE = 0.3, 0.02
"""Calls longer than this must come within so much of the campaign's figure."""
WIDE = 1.04
"""Upper over lower bound of a figure that more processes are asked for."""
CHECKS = (
    "clean", "kernel", "fallback", "opcheck", "fullgraph", "cuda_graph", "threads", "streams",
    "autograd",
)  # fmt: skip


@dataclass
class Row:
    """One operator of the record."""

    operator: str
    task_id: str
    candidate_id: str
    language: str
    dtype: str
    state: str
    """What the dispatch table says on this machine."""
    proposer: str
    strategy: str
    model_class: str
    autograd: str
    campaign: Interval | None
    """Speedup against eager that the library claims."""
    campaign_against_best: Interval | None
    constants: dict[str, Any]
    beats_eager: bool = False
    """Whether its kernel runs with the switch, as it does here."""
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    speedup: Interval | None = None
    """Of the operator against the reference in eager mode, here."""
    reference_ms: float | None = None
    operator_ms: float | None = None
    pairs: int = 0
    """Processes that count: their core did not matter, or was not slow."""
    processes: list[Process] = field(default_factory=list)
    """All of them."""
    floor: float | None = None
    """The largest log ratio that the reference showed against itself."""
    not_run: str = ""
    not_timed: str = ""

    @classmethod
    def of(cls, artefact: Artefact, here: str) -> Row:
        shape = artefact.interface.shapes[0]
        finding = artefact.decisive.get(here)
        state, switched, evaluation = "unverified on this machine", False, None
        if finding is not None:
            state, evaluation = state_of(artefact, finding, shape), finding.evaluation
            switched = beats_eager(artefact, finding, shape)
        given = next((s for s in artefact.task.shapes if s.name == shape.name), None)
        return cls(
            artefact.operator,
            artefact.task.id,
            artefact.candidate.id,
            artefact.candidate.language.value,
            artefact.task.dtype,
            state,
            artefact.provenance.proposer,
            artefact.provenance.strategy,
            artefact.provenance.model_class,
            artefact.interface.autograd,
            None if evaluation is None else evaluation.speedup,
            None if evaluation is None else against_best(evaluation),
            {} if given is None else dict(given.constants),
            switched,
        )

    def request(self) -> dict[str, Any]:
        """What a child has to know of it."""
        bound = CLASS_NORM.get(self.dtype, CLASS_NORM["float32"])
        return {"operator": self.operator, "constants": self.constants, "bound": bound}

    def note_checks(self, said: Sequence[dict[str, Any]], ended: str) -> None:
        self.checks = {one.pop("check"): one for one in map(dict, said)}
        for name in CHECKS:
            missing = {"state": "not run", "detail": ended or "the process ended before it", "s": 0}
            self.checks.setdefault(name, missing)

    def note_times(self, done: Sequence[dict[str, Any]], quickest_us: float) -> None:
        """What its processes said, on a core of that pace at best."""
        self.processes = processes(done, quickest_us)
        calm = [p for p in self.processes if p.counts]
        self.pairs, self.speedup = len(calm), None
        if not calm:
            return
        self.reference_ms = statistics.median(p.reference_ms for p in calm)
        self.operator_ms = statistics.median(p.operator_ms for p in calm)
        if len(calm) < 2:  # of which no interval can be told
            return
        null = Null(tuple(p.log_null for p in calm))
        self.floor = null.floor
        config = EvalConfig(min_pairs=len(calm), max_pairs=len(calm))
        self.speedup = interval([p.pair for p in calm], null, config)

    @property
    def wide(self) -> bool:
        """Whether it was disturbed while it was timed."""
        return self.speedup is not None and self.speedup.high > WIDE * self.speedup.low

    @property
    def used(self) -> str:
        """Where its kernel does the calls: `by default`, `with the switch` or `nowhere`."""
        if self.state == ACTIVE:
            return "by default"
        return "with the switch" if self.beats_eager else NOWHERE

    def passed(self, check: str) -> bool:
        return self.checks.get(check, {}).get("state") == "passed"

    @property
    def out_of_memory(self) -> bool:
        said = [self.checks[n]["detail"] for n in self.wrong]
        return any("OutOfMemoryError" in d or "out of memory" in d for d in said)

    @property
    def wrong(self) -> list[str]:
        """Checks that failed or did not run."""
        return [n for n, c in self.checks.items() if c["state"] not in ("passed", "skipped")]

    @property
    def agrees(self) -> bool | None:
        """Whether the figure here is within the campaign's interval, or within 2 % for long calls;
        None where one of them is missing.
        """
        if self.speedup is None or self.campaign is None or self.reference_ms is None:
            return None
        if self.campaign.low <= self.speedup.value <= self.campaign.high:
            return True
        apart = abs(math.log(self.speedup.value / self.campaign.value))
        return self.reference_ms > LONG_MS and apart <= math.log1p(CLOSE)

    @property
    def proven(self) -> bool:
        return bool(self.checks) and not self.wrong and bool(self.agrees)


HEADER = (
    "operator", "used", "checks", "campaign", "here", "reference ms", "operator ms", "agrees",
)  # fmt: skip


def lines(rows: Sequence[Row]) -> list[str]:
    """A table for readers, and every check that did not pass."""
    table = [HEADER, *map(_cells, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(HEADER))]
    told = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    for row in rows:
        told += [f"{row.operator}: {n}: {row.checks[n]['detail']}" for n in row.wrong]
        told += [f"{row.operator}: {why}" for why in (row.not_run, row.not_timed) if why]
        if row.used == "with the switch":
            told.append(f"{row.operator}: used with the switch alone: {row.state}")
        elif row.used == NOWHERE:
            told.append(f"{row.operator}: the reference does its calls here: {row.state}")
    return told


def _cells(row: Row) -> tuple[str, ...]:
    def words(value: object) -> str:
        return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)

    counts = [c["state"] for c in row.checks.values()]
    checks = f"{counts.count('passed')} passed, {counts.count('skipped')} skipped"
    agrees = {None: "-", True: "yes", False: "no"}[row.agrees]
    figures = (row.campaign, row.speedup, row.reference_ms, row.operator_ms)
    return (row.operator, row.used, checks, *map(words, figures), agrees)
