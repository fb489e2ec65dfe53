"""The front door: one CLI, one verb per command, and the same verbs as Python functions.

    import warpsmith
    evaluation = warpsmith.evaluate("builtin/softmax", "kernel.py")
    result = warpsmith.optimize(["builtin/softmax"], name="first", max_candidates=20)
    files = warpsmith.export("first", "out")

It imports lazily, wires the parts and holds no logic of its own.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11) or sys.platform != "linux":
    raise SystemExit("warpsmith needs Linux and Python 3.11 or newer")

import json
import logging
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox.errors import ConfigError, WarpsmithError

if TYPE_CHECKING:
    from agent.config import OptimizeConfig
    from agent.engine import Engine
    from agent.outcome import CampaignResult
    from agent.types import Proposer
    from sandbox.types import Evaluation, Task

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130
"""Exit codes: the candidate failed; the call could not go on; Ctrl-C."""


# --- the Python API -------------------------------------------------------------------------------


def evaluate(
    task: str,
    kernel: str | Path,
    *,
    language: str | None = None,
    device: str = "auto",
    preset: str = "quick",
) -> Evaluation:
    """Judge and time one kernel file against one task, as `warpsmith evaluate` does.

    `language` is told from the file where it is not given; `preset` names an EvalConfig. Raises
    WarpsmithError where the call cannot go on; a candidate's failure is a Status.
    """
    from agent.config import load_evaluation
    from sandbox.doctor import resolve_device
    from sandbox.evaluator import LocalEvaluator
    from sandbox.language import language_of, read_kernel
    from sandbox.types import Candidate

    config = load_evaluation(preset)
    source = read_kernel(Path(kernel))
    the_task = _one_task(task, resolve_device(device))
    candidate = Candidate(the_task.id, language_of(source, str(kernel), language), source)
    with closing(LocalEvaluator(the_task.device)) as evaluator:
        return evaluator.evaluate(the_task, candidate, config)


def optimize(
    tasks: Sequence[str] | None = None,
    *,
    config: str | OptimizeConfig | None = None,
    name: str | None = None,
    **overrides: object,
) -> CampaignResult:
    """Run or resume a campaign under runs/NAME, as `warpsmith optimize` does.

    `config` is an OptimizeConfig, a preset's name or a YAML file; `overrides` are fields of
    OptimizeConfig. Ctrl-C ends it cleanly; the same call with the same name goes on.
    """
    from rich.console import Console

    from agent.campaign import run_campaign
    from agent.config import OptimizeConfig, load_optimize
    from agent.progress import CampaignView, Header, show_result
    from agent.runs import interruptible, open_run
    from sandbox.doctor import resolve_device

    if not isinstance(config, OptimizeConfig):
        chosen = tuple(tasks) if tasks else None
        config = load_optimize(config, tasks=chosen, **overrides)
    config = replace(config, device=resolve_device(config.device))
    name = name or time.strftime("%Y%m%d-%H%M%S")
    loaded, proposers = _tasks(config), _proposers(config)
    console = Console()
    with open_run(name, config) as journal, closing(_engine(config)) as engine:
        header = Header(name, engine.name, engine.lanes, proposers[0].name, config.device)
        view = CampaignView(console, header, [task.id for task in loaded], config.max_seconds)
        stopping = partial(view.note, "stopping after what is being measured; Ctrl-C to abandon it")
        with interruptible(stopping) as interrupted, view:
            result = run_campaign(
                loaded,
                proposers,
                engine,
                journal,
                config.campaign(),
                on_event=view.update,
                interrupted=interrupted,
            )
    show_result(console, result, str(header))
    return result


def export(run: str, to: str | Path) -> list[Path]:
    """Write the winners of a run as stand-alone files with a manifest: `warpsmith export`."""
    from agent.export import export_run
    from agent.runs import find_run

    return export_run(find_run(run), Path(to))


def _one_task(spec: str, device: str) -> Task:
    from kernelbench.suite import load_tasks

    tasks = load_tasks(spec, device)
    if len(tasks) > 1:
        raise ConfigError(f"{spec} names {len(tasks)} tasks; expected one, such as {tasks[0].id}")
    return tasks[0]


def _tasks(config: OptimizeConfig) -> list[Task]:
    from kernelbench.suite import load_tasks

    found = [task for spec in config.tasks for task in load_tasks(spec, config.device)]
    return list({task.id: task for task in found}.values())


def _proposers(config: OptimizeConfig) -> list[Proposer]:
    if config.model is None:
        from agent.features.proposer import FeatureProposer

        return [FeatureProposer(seed=config.seed)]
    from agent.model import OpenAIModel
    from agent.openai_proposer import ModelProposer
    from sandbox.doctor import describe

    return [ModelProposer(OpenAIModel(config.model), describe(config.device))]


def _engine(config: OptimizeConfig) -> Engine:
    from sandbox.build import build
    from sandbox.doctor import gpu_count
    from sandbox.evaluator import LocalEvaluator

    make_evaluator = partial(LocalEvaluator, config.device)
    if config.engine == "local":
        from agent.engine import LocalEngine

        lanes = config.lanes or (gpu_count() if config.device == "cuda" else 1)
        return LocalEngine(make_evaluator, build, lanes=lanes)
    try:
        from agent.ray_engine import RayEngine
    except ImportError as error:
        raise ConfigError(f"{error}: install ray, or use --engine local") from error
    return RayEngine(
        make_evaluator,
        build,
        device=config.device,
        address=config.ray_address,
        gpu_type=config.gpu_type,
    )


# --- the command line -----------------------------------------------------------------------------

app = typer.Typer(
    help="Turns PyTorch references into proven, faster kernels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
tasks_app = typer.Typer(help="Which problems there are.", no_args_is_help=True)
app.add_typer(tasks_app, name="tasks")

Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]


@app.callback()
def _verbosity(verbose: Annotated[bool, typer.Option(help="Log what happens.")] = False) -> None:
    level = logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")


@app.command("doctor")
def _doctor() -> None:
    """What this machine has, what is missing, and the command that mends it."""
    from rich.console import Console
    from rich.table import Table

    from agent.runs import RUNS
    from sandbox.doctor import examine

    table = Table("part", "state", "detail", "remedy")
    findings = examine(RUNS)
    for finding in findings:
        state = "ok" if finding.ok else "missing" if finding.needed else "-"
        table.add_row(finding.name, state, finding.detail, finding.remedy)
    Console().print(table)
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(FAILED)


@tasks_app.command("list")
def _tasks_list(
    spec: Annotated[str, typer.Argument(help="Such as builtin or kernelbench:PATH.")] = "builtin",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Every task that a spec names."""
    from kernelbench.suite import list_tasks
    from sandbox.doctor import resolve_device
    from sandbox.records import to_record

    found = list_tasks(spec, resolve_device(device))
    if as_json:
        typer.echo(json.dumps(to_record(found)))
        return
    width = max(len(task.id) for task in found)
    for task in found:
        typer.echo(f"{task.id:{width}}  {task.dtype:8}  {len(task.shapes)} shapes  {task.about}")


@tasks_app.command("show")
def _tasks_show(task: str, device: Device = "auto", as_json: Json = False) -> None:
    """One task: its sizes and its reference."""
    from sandbox.doctor import resolve_device
    from sandbox.records import to_record

    found = _one_task(task, resolve_device(device))
    if as_json:
        typer.echo(json.dumps(to_record(found)))
        return
    typer.echo(f"# {found.id}, {found.device}, {found.dtype}")
    for shape in found.shapes:
        constants = ", ".join(f"{name} = {value}" for name, value in shape.constants)
        typer.echo(f"# {shape.name}: {constants or 'as written'}")
    typer.echo(found.source)


@app.command("evaluate")
def _evaluate(
    task: str,
    kernel: Path,
    language: Annotated[str | None, typer.Option(help="Told from the file otherwise.")] = None,
    device: Device = "auto",
    preset: Annotated[str, typer.Option(help="quick, strict, kernelbench or a file.")] = "quick",
    as_json: Json = False,
) -> None:
    """Judge and time one kernel file; exits with 0 if it passed and 1 if it failed."""
    from agent.progress import evaluation_lines, evaluation_record

    result = evaluate(task, kernel, language=language, device=device, preset=preset)
    if as_json:
        typer.echo(json.dumps(evaluation_record(result)))
    else:
        typer.echo("\n".join(evaluation_lines(result)))
    if not result.passed:
        raise typer.Exit(FAILED if result.status.scored else UNUSABLE)


@app.command("optimize")
def _optimize(
    tasks: Annotated[list[str] | None, typer.Argument(help="Instead of the config's.")] = None,
    model: Annotated[str | None, typer.Option(help="At OPENAI_BASE_URL.")] = None,
    config: Annotated[str | None, typer.Option(help="A YAML file or a preset.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the run; an old one goes on.")] = None,
    engine: Annotated[str | None, typer.Option(help="ray or local.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="Of a running cluster.")] = None,
    max_candidates: Annotated[int | None, typer.Option(help="Over all tasks.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Of this call.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
) -> None:
    """Search for faster kernels; the same command with the same --name goes on after a stop."""
    name = name or time.strftime("%Y%m%d-%H%M%S")
    result = optimize(
        tasks,
        config=config,
        name=name,
        model=model,
        engine=engine,
        ray_address=ray_address,
        max_candidates=max_candidates,
        max_seconds=max_seconds,
        device=device,
    )
    if result.stopped is not None:
        typer.echo(f"to go on: the same command with --name {name}", err=True)
    if result.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if not result.tried:
        raise typer.Exit(UNUSABLE)


@app.command("show")
def _show(run: str, as_json: Json = False) -> None:
    """What a run has found so far."""
    from rich.console import Console

    from agent.journal import Journal
    from agent.outcome import reports
    from agent.progress import report_record, show_reports
    from agent.runs import find_run

    folder = find_run(run)
    with Journal(folder, read_only=True) as journal:
        found = reports(journal)
    if as_json:
        typer.echo(json.dumps({"run": folder.name, "tasks": [report_record(r) for r in found]}))
    else:
        show_reports(Console(), found, f"run: {folder.name}")


@app.command("export")
def _export(run: str, to: Annotated[Path, typer.Option(help="Folder to write.")]) -> None:
    """Write the winners of a run as stand-alone files with a manifest."""
    for path in export(run, to):
        typer.echo(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: a WarpsmithError is one line on stderr and exit code 2."""
    try:
        app(arguments)
    except WarpsmithError as error:
        typer.echo(f"warpsmith: {error}", err=True)
        sys.exit(UNUSABLE)


if __name__ == "__main__":
    main()
