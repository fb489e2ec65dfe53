"""The rows of `benchmarks.throughput` as Markdown tables. Pure: no clock, no file."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
LARGE_BYTES = 1 << 30
HOUR_S = 3600.0
FAULT = "SANDBOX_ERROR"
"""Of ours: no verdict, which may have cost next to nothing."""


def summary(rows: Sequence[Row]) -> str:
    """Cost and verdicts on the stream, then the spread over repetitions."""
    found = [row for row in rows if row["kind"] == "row"]
    sized = {row["key"][2]: row["bytes"] for row in found if row.get("bytes") is not None}
    stream = [row for row in found if row["key"][1] == "stream"]
    repeated = [row for row in found if row["key"][1] == "repeat"]
    parts = [heading(rows)]
    if stream:
        parts += [costs(stream, sized), verdicts(stream)]
    if repeated:
        parts.append(spreads(repeated))
    parts += [pipeline(row) for row in rows if row["kind"] == "pipeline"]
    return "\n\n".join(parts)


def pipeline(row: Row) -> str:
    """The stream with the pipeline full."""
    count, seconds = len(row["verdicts"]), row["seconds"]
    return (
        f"Pipeline: {count} candidates in {seconds:.1f} s, preparation of their tasks included: "
        f"{seconds / count:.2f} s each, {HOUR_S * count / seconds:.0f} per GPU-hour; GPU held "
        f"{100 * row['gpu_s'] / seconds:.0f} % of the time by candidates; "
        f"{row['right']} verdicts as expected."
    )


def heading(rows: Sequence[Row]) -> str:
    """Where and with what this was measured."""
    runs = [row for row in rows if row["kind"] == "run"]
    machines = {row["environment"]["gpu"] for row in runs if "gpu" in row.get("environment", {})}
    commits = {str(row["kernelbench"]) for row in runs}
    named = {name for row in rows for name in row.get("placeholders") or ()}
    text = f"{', '.join(sorted(machines)) or 'unknown GPU'}; KernelBench {', '.join(commits)}; "
    text += f"{len(runs)} runs, {runs[0]['date'][:10] if runs else ''}."
    if named:
        text += f" Absent there and never called by evaluation: {', '.join(sorted(named))}."
    return text


def group_of(row: Row, sized: dict[str, int]) -> str:
    _, _, problem, language, _, _, warm = row["key"]
    if language == "cuda_inline":
        return f"load_inline, {'warm' if warm else 'cold'}"
    large = sized.get(problem, 0) > LARGE_BYTES
    return "CUDA, Triton over 1 GiB" if large else "CUDA, Triton up to 1 GiB"


def paired(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Rows of both sides by candidate; those that only one side has are left out."""
    both: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        both[repr(row["key"][1:])][row["key"][0]] = row
    return {key: sides for key, sides in both.items() if len(sides) == 2}


def costs(rows: Sequence[Row], sized: dict[str, int]) -> str:
    """Median seconds by group; the ratio is the median of the candidates' own ratios. What came to
    no verdict of ours is left out of both sides.
    """
    groups: dict[str, list[dict[str, Row]]] = defaultdict(list)
    judged = [sides for sides in paired(rows).values() if sides["ours"]["verdict"] != FAULT]
    for sides in judged:
        groups[group_of(sides["ours"], sized)].append(sides)
    groups["all"] = [sides for group in list(groups.values()) for sides in group]
    lines = [
        "| group | candidates | theirs: s, GPU s | ours: s, GPU s | GPU s ratio, median (least) |"
        " candidates per GPU-hour: theirs, ours, ours with preparation |",
        "|---|---|---|---|---|---|",
    ]
    for name, group in sorted(groups.items(), key=lambda item: (item[0] == "all", item[0])):
        theirs, ours = [s["harness"] for s in group], [s["ours"] for s in group]
        ratios = [s["harness"]["gpu_s"] / max(s["ours"]["gpu_s"], 1e-3) for s in group]
        whole = sum(row["gpu_s"] + row["prepare_s"] for row in ours)
        lines.append(
            f"| {name} | {len(group)} | {median(theirs, 'seconds')}, {median(theirs, 'gpu_s')} "
            f"| {median(ours, 'seconds')}, {median(ours, 'gpu_s')} "
            f"| {statistics.median(ratios):.1f} ({min(ratios):.1f}) "
            f"| {per_hour(theirs, sum(r['gpu_s'] for r in theirs))}, "
            f"{per_hour(ours, sum(r['gpu_s'] for r in ours))}, {per_hour(ours, whole)} |"
        )
    if faults := len(paired(rows)) - len(judged):
        lines.append(f"\nWithout a verdict of ours, and left out: {faults}.")
    return "\n".join(lines)


def median(rows: Sequence[Row], name: str) -> str:
    return f"{statistics.median(row[name] for row in rows):.2f}"


def per_hour(rows: Sequence[Row], seconds: float) -> str:
    return f"{HOUR_S * len(rows) / max(seconds, 1e-3):.0f}"


def verdicts(rows: Sequence[Row]) -> str:
    """Agreement on passed or not, and each side against what is known of the candidates."""
    both = paired(row for row in rows if not row["key"][6])
    agree = sum(s["ours"]["passed"] == s["harness"]["passed"] for s in both.values())
    lines = [f"Verdicts (passed or not): {agree} of {len(both)} agree."]
    for side, name in (("harness", "theirs"), ("ours", "ours")):
        right = sum(s[side]["passed"] == (s[side]["expected"] == "PASSED") for s in both.values())
        lines.append(f"Right for {name}: {right} of {len(both)}.")
    lines += ["", "| where they differ | expected | theirs | ours |", "|---|---|---|---|"]
    for sides in both.values():
        ours, theirs = sides["ours"], sides["harness"]
        if ours["passed"] != theirs["passed"]:
            what = " ".join(ours["key"][2:5])
            cells = (what, ours["expected"], theirs["verdict"], ours["verdict"])
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spreads(rows: Sequence[Row]) -> str:
    """How far the reported speedup of one candidate goes over repetitions: (largest - smallest) /
    median; below the table over those of which every side has figures.
    """
    groups: dict[tuple[str, ...], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        part, _, *what = row["key"][:5]
        groups[tuple(what)][part].append(row)
    lines = [
        "| candidate | call, us | theirs: speedup, spread | ours: speedup, spread | flips |",
        "|---|---|---|---|---|",
    ]
    worst: dict[str, list[float]] = defaultdict(list)
    compared = 0
    for what, sides in groups.items():
        mine: dict[str, float] = {}
        cells = [" ".join(what), call_us(sides)]
        for part in ("harness", "ours"):
            speedups = [row["speedup"] for row in sides[part] if row.get("speedup")]
            if len(speedups) < 2:
                cells.append(f"{len(speedups)} figures")
                continue
            middle = statistics.median(speedups)
            spread = (max(speedups) - min(speedups)) / middle
            mine[part] = spread
            cells.append(f"{middle:.3f}x, {100 * spread:.1f} % of {len(speedups)}")
        if len(mine) == len({part for each in groups.values() for part in each}):
            compared += 1
            for part, spread in mine.items():
                worst[part].append(spread)
        flips = [len({row["passed"] for row in sides[p]}) > 1 for p in ("harness", "ours")]
        cells.append(", ".join(n for n, f in zip(("theirs", "ours"), flips, strict=True) if f))
        lines.append(f"| {' | '.join(cells)} |")
    for part, name in (("harness", "theirs"), ("ours", "ours")):
        if worst[part]:
            middle, most = statistics.median(worst[part]), max(worst[part])
            lines.append(
                f"\nSpread over {compared} candidates, {name}: median {100 * middle:.1f} %, "
                f"worst {100 * most:.1f} %."
            )
    return "\n".join(lines)


def call_us(sides: dict[str, list[Row]]) -> str:
    known = [row["reference_ms"] for row in sides["ours"] if row.get("reference_ms")]
    return f"{1e3 * statistics.median(known):.0f}" if known else "-"
