"""What the reports of a campaign and of a bench say alike: headline, fast_p, baselines, times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.journals.timings import STAGES
from agent.report.page import Curve, Row, Tile, fast_curve
from kernelbench.metrics import AT_LEAST_BEST, Summary
from sandbox.words import number_of


def headline_tiles(summary: Summary, note: str) -> list[Tile]:
    """Against eager, of which `note` says how it was made, and against B* where that was timed."""
    headline, best = summary.headline, summary.headline_best
    # Of one task a bootstrap has no width: its row has an interval.
    shown = headline if summary.tasks > 1 else None
    tiles = [Tile("against eager", f"{headline.value:.2f}x", note, shown)]
    if best is not None:
        note = "the same; what is slower than the fastest baseline counts 1.0"
        if summary.best_left_out:
            note += f"; {summary.best_left_out}, without a timed baseline"
        shown = best if summary.tasks - summary.without_best > 1 else None
        tiles.append(Tile(AT_LEAST_BEST, f"{best.value:.2f}x", note, shown))
    return tiles


def fast_table(summary: Summary | None) -> dict[str, Mapping[str, float]]:
    if summary is None:
        return {}
    best = summary.fast_best
    name = ", ".join(filter(None, ("B*", summary.best_left_out)))
    return {"eager": summary.fast, **({} if best is None else {name: best})}


def baseline_curves(rows: Sequence[Row], total: int) -> list[Curve]:
    """Each baseline as if it were a set of kernels, over the tasks where it was timed: its name
    says how many, where those are not all of the `total` that the curve beside it is over.
    """
    curves = []
    for name in sorted({name for row in rows for name in row.baselines}):
        ratios = [row.baselines[name] for row in rows if name in row.baselines]
        shown = {"compile": "torch.compile"}.get(name, name.replace("_", " "))
        if len(ratios) < total:
            shown += f", {len(ratios)} of {number_of(total, 'task')}"
        curves.append(fast_curve(shown, ratios))
    return curves


def by_stage(seconds: Mapping[str, float], first: Sequence[str] = ()) -> dict[str, float]:
    """Those that took time: the ones named first, an evaluation's as they follow, then others."""
    order = [*first, *STAGES]
    names = sorted(seconds, key=lambda n: (order.index(n) if n in order else len(order), n))
    return {name: seconds[name] for name in names if seconds[name] > 0}


def duration(seconds: float) -> str:
    """`45 s`, `12.5 min`, `3.1 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def dollars(usd: float) -> str:
    """`$1,234.50`; of less than a cent its first two digits, since it was not nothing."""
    return f"${usd:.2g}" if 0 < usd < 0.01 else f"${usd:,.2f}"
