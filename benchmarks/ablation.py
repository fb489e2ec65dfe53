"""Strategies on the same tasks with the same budget of candidates: what search is worth.

Every arm is a run of its own, NAME-ARM under runs/ (`+` is `-` there), so the same command goes on
where it stopped. An arm is a strategy (a preset's name or a file), with `+tuning` or `+memory` for
what works beside it. Its budget is `--candidates` a task; a portfolio may divide the sum unevenly.
The replies that each arm took are in the table: one that repeats a known program costs a reply and
no candidate.

    python benchmarks/ablation.py --config campaign.yaml --name abl --candidates 8
    python benchmarks/ablation.py ... --export-requests out --import-replies in

With folders, each arm's requests go to out/ARM.jsonl and its replies come from in/ARM.*jsonl;
repeat until no arm has requests left. The figure of a task is its best candidate's confirmation; a
gain that none upheld counts 1.0, since the best of many searches' figures is a lucky one, and so
does a task without a correct candidate. Intervals are bootstraps over tasks of the geometric mean
(kernelbench/metrics.py), and of the mean ratio to the first arm, paired by task.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agent.config import OptimizeConfig, load_optimize, strategy_values, validate
from agent.journals.journal import FILE, Journal
from agent.journals.outcome import TaskReport, reports
from agent.journals.spending import Spending, spending
from agent.memory.notes import Memory
from agent.proposing.tuner import Tuning
from agent.runs import RUNS
from agent.strategies.portfolio import Portfolio
from kernelbench.metrics import bootstrap, fast_p, mean_over_all
from sandbox.errors import ConfigError
from sandbox.figures import Interval

ARMS = ("best-of-n", "fsr", "contrastive", "evolve", "portfolio")
FEWEST_TASKS = 8
UNEVEN = 3
"""Times its even share that a portfolio may spend on one task."""
Optimize = Callable[..., object]
"""`warpsmith.optimize`, or a double of it."""


@dataclass(frozen=True)
class Row:
    """One arm over all tasks."""

    arm: str
    tasks: int
    correct: int
    speedup: Interval
    """Geometric mean against eager; a failure counts 1.0, and so does a gain not confirmed."""
    faster: float
    """Share of tasks with a confirmed win over eager."""
    against_first: Interval
    """Geometric mean of the ratio to the first arm, task by task."""
    candidates: int
    spent: Spending


def arm_config(arm: str, base: OptimizeConfig, tasks: int, candidates: int) -> OptimizeConfig:
    """The base with this arm's strategy, and with what works beside it only where it says so."""
    name, *beside = arm.split("+")
    if unknown := set(beside) - {"tuning", "memory"}:
        raise ConfigError(f"{arm}: cannot add {min(unknown)!r}; expected +tuning or +memory")
    if "memory" in beside and base.memory is None:
        raise ConfigError(f"{arm}: the config has no memory settings; expected memory: {{file: F}}")
    values = strategy_values(name, arm)
    strategy = validate(OptimizeConfig, {"strategy": values}, name).strategy
    uneven = isinstance(strategy, Portfolio) and strategy.across.spend == "headroom"
    memory: Memory | None = base.memory if "memory" in beside else None
    return replace(
        base,
        strategy=strategy,
        tuning=(base.tuning or Tuning()) if "tuning" in beside else None,
        memory=memory,
        confirm=True,
        max_candidates_per_task=candidates * (UNEVEN if uneven else 1),
        max_candidates=tasks * candidates,
    )


def run_arm(
    arm: str,
    name: str,
    config: OptimizeConfig,
    optimize: Optimize,
    exports: Path | None = None,
    imports: Path | None = None,
) -> None:
    """Run or resume one arm's campaign."""
    files: dict[str, object] = {}
    if exports is not None:
        exports.mkdir(parents=True, exist_ok=True)
        files["export_requests"] = exports / f"{arm}.jsonl"
    if imports is not None:
        files["import_replies"] = [
            f for f in sorted(imports.glob("*.jsonl")) if f.name.split(".")[0] == arm
        ]
    optimize(config=config, name=run_of(name, arm), **files)


def run_of(name: str, arm: str) -> str:
    """The arm's run; names of runs hold no `+`."""
    return f"{name}-{arm}".replace("+", "-")


def rows(name: str, arms: Sequence[str], runs: Path = RUNS) -> list[Row]:
    """The table's, from the arms' journals."""
    found = {arm: read_arm(runs / run_of(name, arm)) for arm in arms}
    first = logs(found[arms[0]][0])
    table = []
    for arm, (tasks, spent) in found.items():
        speeds = [figure(t) for t in tasks]
        own = logs(tasks)
        shared = [own[id] - first[id] for id in first if id in own]
        table.append(
            Row(
                arm,
                len(tasks),
                sum(speed is not None for speed in speeds),
                mean_over_all(speeds),
                fast_p(speeds, 1.0),
                bootstrap(shared),
                sum(t.tried for t in tasks),
                spent,
            )
        )
    return table


def read_arm(folder: Path) -> tuple[tuple[TaskReport, ...], Spending]:
    """Raises ConfigError where the arm was not run, or on fewer than eight tasks."""
    if not (folder / FILE).is_file():
        raise ConfigError(f"{folder}: no such run; run the arm first")
    with Journal(folder, read_only=True) as journal:
        tasks = tuple(row for row in reports(journal) if row.verdict not in SETTLED)
        if len(tasks) < FEWEST_TASKS:
            raise ConfigError(
                f"{folder}: {len(tasks)} tasks; an interval over tasks needs {FEWEST_TASKS}"
            )
        return tasks, spending(journal)


SETTLED = frozenset(("unsupported", "invalid reference"))
"""Of tasks that no arm can work on."""


def figure(task: TaskReport) -> float | None:
    """What counts of a task's best, against eager; None where nothing was correct."""
    if task.speedup is None:
        return None
    return task.speedup.value if task.confirmed else min(1.0, task.speedup.value)


def logs(tasks: Sequence[TaskReport]) -> dict[str, float]:
    """Log-speedup by task; a failure counts as eager."""
    return {task.task_id: math.log(figure(task) or 1.0) for task in tasks}


def markdown(table: Sequence[Row]) -> str:
    first = table[0].arm
    lines = [
        f"| arm | correct | against eager | faster | against {first} | candidates | replies |"
        " tokens | $ |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table:
        spent = row.spent
        usd = "-" if spent.usd is None else f"{spent.usd:.2f}"
        lines.append(
            f"| {row.arm} | {row.correct}/{row.tasks} | {row.speedup} | {100 * row.faster:.0f} % | "
            f"{row.against_first} | {row.candidates} | {spent.replies} | "
            f"{spent.prompt_tokens + spent.completion_tokens} | {usd} |"
        )
    return "\n".join(lines)


def main() -> None:
    import warpsmith
    from kernelbench.suite import load_tasks
    from sandbox.doctor import resolve_device

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", default="quickstart", help="models, tasks, evaluation, caps")
    parser.add_argument("--name", required=True, help="begins the arms' runs")
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--model", help="as warpsmith optimize takes it")
    parser.add_argument("--candidates", type=int, default=8, help="of a task")
    parser.add_argument("--max-seconds", type=float, help="of each arm's call")
    parser.add_argument("--export-requests", type=Path, help="folder")
    parser.add_argument("--import-replies", type=Path, help="folder")
    parser.add_argument("--table", action="store_true", help="run nothing, read the journals")
    parser.add_argument("--json", type=Path, help="write the rows there as well")
    given = parser.parse_args()
    try:
        base = load_optimize(given.config, model=given.model, max_seconds=given.max_seconds)
        base = replace(base, device=resolve_device(base.device))
        tasks = {t.id for spec in base.tasks for t in load_tasks(spec, base.device)}
        for arm in [] if given.table else given.arms:
            config = arm_config(arm, base, len(tasks), given.candidates)
            print(f"== {arm}", flush=True)
            run_arm(
                arm,
                given.name,
                config,
                warpsmith.optimize,
                given.export_requests,
                given.import_replies,
            )
        table = rows(given.name, given.arms)
    except ConfigError as error:
        sys.exit(str(error))
    print(markdown(table))
    if given.json is not None:
        models = [m.name for m in base.asked] or [base.model or "no model"]
        record = {"schema_version": 1, "models": models, "rows": [asdict(row) for row in table]}
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
