"""The front door: one CLI, one verb per command, and the same verbs as Python functions.

    import warpsmith
    evaluation = warpsmith.evaluate("builtin/softmax", "kernel.py")
    result = warpsmith.optimize(["builtin/softmax"], name="first", max_candidates=20)
    files = warpsmith.export("first", "out")
    tasks = warpsmith.extract("model.py", "tasks")
    outcome = warpsmith.apply("model.py", "out")

It imports lazily, wires the parts and holds no logic of its own: a command parses, makes one call,
prints what came of it and sets the exit code.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11) or sys.platform != "linux":
    raise SystemExit("warpsmith needs Linux and Python 3.11 or newer")

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox.errors import ConfigError, WarpsmithError

if TYPE_CHECKING:
    from rich.console import Console

    from agent.config import OptimizeConfig
    from agent.export.revalidate import Outcome
    from agent.extraction.extract import Extracted
    from agent.outcome import CampaignResult
    from agent.replay import Difference
    from agent.substitution.report import Application
    from kernelbench.bench import Report
    from kernelbench.results import Row
    from sandbox.types import Evaluation

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
    from kernelbench.suite import load_task
    from sandbox.doctor import resolve_device
    from sandbox.evaluator import LocalEvaluator
    from sandbox.language import read_candidate

    config = load_evaluation(preset)
    the_task = load_task(task, resolve_device(device))
    candidate = read_candidate(Path(kernel), the_task.id, language)
    with closing(LocalEvaluator(the_task.device)) as evaluator:
        return evaluator.evaluate(the_task, candidate, config)


def optimize(
    tasks: Sequence[str] | None = None,
    *,
    config: str | OptimizeConfig | None = None,
    name: str | None = None,
    export_requests: str | Path | None = None,
    import_replies: Sequence[str | Path] = (),
    **overrides: object,
) -> CampaignResult:
    """Run or resume a campaign under runs/NAME, as `warpsmith optimize` does.

    `config` is an OptimizeConfig, a preset's name or a YAML file; `overrides` are fields of
    OptimizeConfig. Ctrl-C ends it cleanly; the same call with the same name goes on. With a file to
    export requests to, or files to import replies from, nothing is sent to a model's endpoint.
    """
    from agent.config import OptimizeConfig, load_optimize
    from agent.launch import launch
    from agent.runs import new_name
    from rl.opening import local_policy
    from sandbox.doctor import resolve_device

    if not isinstance(config, OptimizeConfig):
        chosen = tuple(tasks) if tasks else None
        config = load_optimize(config, tasks=chosen, **overrides)
    config, policy = local_policy(replace(config, device=resolve_device(config.device)))
    return launch(
        config,
        name or new_name(),
        policy,
        export_requests=None if export_requests is None else Path(export_requests),
        import_replies=[Path(file) for file in import_replies],
    )


def replay(run: str, *, name: str | None = None) -> tuple[CampaignResult, list[Difference]]:
    """Decide a recorded run again from its journal alone, as `warpsmith replay` does.

    Writes a run of its own (by default NAME-replay); returns what it found and the first difference
    of every task that has one.
    """
    from agent.replay import replay_run
    from agent.runs import find_run

    folder = find_run(run)
    return replay_run(folder, name or f"{folder.name}-replay")


def export(
    runs: str | Sequence[str],
    to: str | Path,
    *,
    format: str | Sequence[str] = "modelnew",
    package: str = "tuned_kernels",
    licence: str = "unknown",
    archs: Sequence[str] = (),
    device: str = "auto",
) -> list[Path]:
    """Write the winners of runs in one form, or in several, each in a folder: `warpsmith export`.

    Forms are `modelnew`, `package`, `kernels`, `kernelbench` and `flashinfer`; `package` names the
    package or repository, `licence` is the kernels' SPDX identifier, `archs` such as `sm_90` get
    binaries beside those measured. `device` is where converted kernels are judged again.
    """
    from agent.export.formats import check_formats, export_formats
    from agent.runs import find_run
    from sandbox.doctor import resolve_device
    from sandbox.evaluator import LocalEvaluator

    formats = check_formats(
        [format] if isinstance(format, str) else format, package, archs, licence
    )
    folders = [find_run(run) for run in ([runs] if isinstance(runs, str) else runs)]
    resolved = resolve_device(device)
    make_evaluator = partial(LocalEvaluator, resolved)
    return export_formats(folders, Path(to), formats, resolved, make_evaluator)


def revalidate(folder: str | Path, *, device: str = "auto") -> list[Outcome]:
    """Judge every kernel of an exported package again on this machine: `warpsmith revalidate`.

    The library in the folder is written anew, with the dispatch table that follows.
    """
    from agent.export.revalidate import revalidate as again
    from sandbox.doctor import resolve_device
    from sandbox.evaluator import LocalEvaluator

    resolved = resolve_device(device)
    return again(Path(folder), resolved, partial(LocalEvaluator, resolved))


def extract(model: str | Path, to: str | Path, *, top: int = 8, device: str = "auto") -> Extracted:
    """Write the costliest parts of a user's model as tasks, as `warpsmith extract` does.

    `model` is a file with `get_inputs()` and `class Model` or `make_model()`; it is executed, in a
    process of its own.
    """
    from agent.extraction.extract import extract as write_tasks
    from sandbox.doctor import resolve_device

    return write_tasks(Path(model), Path(to), resolve_device(device), top)


def apply(
    model: str | Path,
    library: str | Path,
    *,
    pairs: int = 4,
    device: str = "auto",
    tell: Callable[[str], None] = lambda _: None,
) -> Application:
    """Put a library's operators into a user's model, as `warpsmith apply` does: what fits, whether
    outputs and gradients stay right, and latency before and after over `pairs` fresh processes.
    """
    from agent.substitution.apply import apply as put_in
    from sandbox.doctor import resolve_device

    return put_in(Path(model), str(library), resolve_device(device), pairs, tell)


def bench(
    given: str | Path,
    suite: Sequence[str] = ("builtin",),
    *,
    out: str | Path | None = None,
    device: str = "auto",
    preset: str = "quick",
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    on_row: Callable[[Row, int], None] = lambda _, __: None,
    on_fault: Callable[[str, str], None] = lambda _, __: None,
) -> Report:
    """Score a set of kernels on a suite, as `warpsmith bench` does; goes on where `out` stopped.

    `given` is a folder, a KernelBench run, a file of JSON lines, or a campaign's name or folder.
    """
    from agent.scoring import score
    from sandbox.doctor import resolve_device

    return score(
        given,
        suite,
        Path("bench", Path(given).resolve().stem) if out is None else Path(out),
        resolve_device(device),
        preset,
        seconds=seconds,
        interrupted=interrupted,
        on_row=on_row,
        on_fault=on_fault,
    )


def report(
    run: str | Path,
    to: str | Path | None = None,
    *,
    markdown: bool = False,
    references: Sequence[str | Path] = (),
) -> Path:
    """Write what a campaign or a bench has found so far as one page: `warpsmith report`.

    `to` is by default report.html (report.md) in its folder; `references` are benches whose fast_p
    is drawn beside its own. Returns the file.
    """
    from agent.report.find import write_report

    path = None if to is None else Path(to)
    return write_report(str(run), path, markdown=markdown, references=[*map(Path, references)])


# --- the command line -----------------------------------------------------------------------------

app = typer.Typer(
    help="Turns PyTorch references into proven, faster kernels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
tasks_app = typer.Typer(help="Which problems there are.", no_args_is_help=True)
app.add_typer(tasks_app, name="tasks")
data_app = typer.Typer(help="Tasks and examples to train on.", no_args_is_help=True)
app.add_typer(data_app, name="data")
train_app = typer.Typer(help="The stages of training, apart.", no_args_is_help=True)
app.add_typer(train_app, name="train")


def _resolved(device: str) -> str:
    """A GPU that is not there is refused before anything else is read."""
    from sandbox.doctor import resolve_device

    return resolve_device(device)


Config = Annotated[str | None, typer.Option(help="A YAML file or a preset.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.", callback=_resolved)]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Of this call.")]
Preset = Annotated[str, typer.Option(help="quick, strict, kernelbench or a file.")]
Spec = Annotated[str, typer.Argument(help="Such as builtin or kernelbench:PATH.")]
Strategy = Annotated[str | None, typer.Option(help="A preset, such as evolve, or a file.")]
To = Annotated[Path, typer.Option(help="Folder to write.")]
TrainConfig = Annotated[str, typer.Option(help="Preset of configs/train, or a file.")]

_note = partial(typer.echo, err=True)


def _say(lines: Iterable[object]) -> None:
    typer.echo("\n".join(map(str, lines)))


def _answer(found: object, as_json: bool, show: Callable[[Console], object]) -> None:
    """On stdout: what was found as one line of JSON, or as `show` prints it for a reader."""
    from agent.console import open_console
    from sandbox.records import to_record

    if as_json:
        typer.echo(json.dumps(to_record(found)))
    else:
        show(open_console())


def _say_how_to_go_on(result: CampaignResult, name: str) -> None:
    if result.stopped is not None:
        _note(f"to go on: the same command with --name {name}")


@app.callback()
def _verbosity(verbose: Annotated[bool, typer.Option(help="Log what happens.")] = False) -> None:
    level = logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")


@app.command("doctor")
def _doctor(
    model: Annotated[str | None, typer.Option(help="Ask this model once as well.")] = None,
) -> None:
    """What this machine has, what is missing, and the command that mends it."""
    from rich.console import Console

    from agent.models.probing import probe
    from agent.runs import RUNS
    from sandbox.doctor import examine
    from sandbox.doctor_view import findings_table

    findings = examine(RUNS) + ([] if model is None else probe(model))
    Console().print(findings_table(findings))
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(FAILED)


@tasks_app.command("list")
def _tasks_list(spec: Spec = "builtin", device: Device = "auto", as_json: Json = False) -> None:
    """Every task that a spec names."""
    from kernelbench.suite import list_tasks
    from kernelbench.suite_view import summary_lines

    found = list_tasks(spec, device)
    _answer(found, as_json, lambda _: _say(summary_lines(found)))


@tasks_app.command("show")
def _tasks_show(task: str, device: Device = "auto", as_json: Json = False) -> None:
    """One task: its sizes and its reference."""
    from kernelbench.suite import load_task
    from kernelbench.suite_view import task_lines

    found = load_task(task, device)
    _answer(found, as_json, lambda _: _say(task_lines(found)))


@tasks_app.command("validate")
def _tasks_validate(
    spec: Spec = "builtin",
    device: Device = "auto",
    preset: Preset = "quick",
    only: Annotated[list[str] | None, typer.Option(help="Ids such as softmax or 1?_*.")] = None,
    record: Annotated[
        Path | None, typer.Option("--json", help="JSON lines; the same command goes on with it.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Begin no task after so long.")] = None,
    compiled: Annotated[bool, typer.Option(help="Time torch.compile too: minutes a task.")] = False,
) -> None:
    """Which tasks can be scored, and why not; exits with 1 if some cannot."""
    from agent.console import open_console
    from agent.scoring import admit
    from kernelbench.admission import admission_table, totals

    rows, left = admit(
        spec,
        only or (),
        device,
        preset,
        path=record,
        seconds=seconds,
        compiled=compiled,
        on_row=lambda row: _note(f"{row.task_id}: {row.verdict} {row.reason}"),
        on_fault=lambda task, fault: _note(f"{task.id}: our fault: {fault}"),
    )
    console = open_console()
    console.print(admission_table(rows, f"suite: {spec} · device: {device} · preset: {preset}"))
    console.print(totals(rows, left))
    if any(not row.verdict.scored for row in rows):
        raise typer.Exit(FAILED)


@app.command("prompt")
def _prompt(
    task: str,
    strategy: Strategy = None,
    run: Annotated[str | None, typer.Option(help="What would be asked next in this run.")] = None,
    language: Annotated[str | None, typer.Option(help="cpp, cuda, cuda_inline, triton.")] = None,
    config: Config = None,
    device: Device = "auto",
) -> None:
    """Print what a model would be asked about a task; nothing is sent."""
    from agent.asking import asks_text, next_asks
    from agent.config import load_optimize
    from agent.runs import find_run
    from kernelbench.suite import load_task
    from sandbox.doctor import describe

    settings = load_optimize(config, strategy=strategy, device=device, language=language)
    folder = None if run is None else find_run(run)
    asks = next_asks(load_task(task, device), settings, describe(device), folder)
    typer.echo(asks_text(asks) if asks else "the strategy has nothing more to ask")


@app.command("evaluate")
def _evaluate(
    task: str,
    kernel: Path,
    language: Annotated[str | None, typer.Option(help="Told from the file otherwise.")] = None,
    device: Device = "auto",
    preset: Preset = "quick",
    as_json: Json = False,
) -> None:
    """Judge and time one kernel file; exits with 0 if it passed and 1 if it failed."""
    from agent.progress import evaluation_lines, evaluation_record

    result = evaluate(task, kernel, language=language, device=device, preset=preset)
    _answer(evaluation_record(result), as_json, lambda _: _say(evaluation_lines(result)))
    if not result.passed:
        raise typer.Exit(FAILED if result.status.scored else UNUSABLE)


@app.command("optimize")
def _optimize(
    tasks: Annotated[list[str] | None, typer.Argument(help="Instead of the config's.")] = None,
    model: Annotated[
        str | None, typer.Option(help="At OPENAI_BASE_URL, or local:FOLDER of a checkpoint.")
    ] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Train the local model on it.")] = False,
    train: Annotated[str | None, typer.Option(help="Preset of configs/train, or a file.")] = None,
    config: Config = None,
    name: Annotated[str | None, typer.Option(help="Of the run; an old one goes on.")] = None,
    strategy: Strategy = None,
    language: Annotated[str | None, typer.Option(help="Models are asked for.")] = None,
    max_requests: Annotated[int | None, typer.Option(help="To models, retries too.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of models, over the run.")] = None,
    max_reply_tokens: Annotated[int | None, typer.Option(help="Of one reply.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="For models, over the run.")] = None,
    export_requests: Annotated[
        Path | None, typer.Option(help="Write a round's requests as batch lines, and stop.")
    ] = None,
    import_replies: Annotated[
        list[Path] | None, typer.Option(help="Go on with the lines of these files.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Spend without asking.")] = False,
    engine: Annotated[str | None, typer.Option(help="ray or local.")] = None,
    ray_address: Annotated[str | None, typer.Option(help="Of a running cluster.")] = None,
    max_candidates: Annotated[int | None, typer.Option(help="Over all tasks.")] = None,
    max_seconds: MaxSeconds = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
) -> None:
    """Search for faster kernels; the same command with the same --name goes on after a stop."""
    from agent.config import load_optimize
    from agent.runs import new_name

    name = name or new_name()
    settings = load_optimize(
        config,
        tasks=tuple(tasks) if tasks else None,
        model=model,
        learn=learn or None,
        train=train,
        strategy=strategy,
        language=language,
        max_requests=max_requests,
        max_tokens=max_tokens,
        max_reply_tokens=max_reply_tokens,
        max_usd=max_usd,
        engine=engine,
        ray_address=ray_address,
        max_candidates=max_candidates,
        max_seconds=max_seconds,
        device=device,
    )
    if settings.asked and export_requests is None and not import_replies:
        _agree(settings, name, yes)
    result = optimize(
        config=settings,
        name=name,
        export_requests=export_requests,
        import_replies=import_replies or (),
    )
    _say_how_to_go_on(result, name)
    if result.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if not result.tried and export_requests is None:
        raise typer.Exit(UNUSABLE)


def _agree(config: OptimizeConfig, name: str, yes: bool) -> None:
    """Say what will be asked of models; ask first, where there is somebody to ask."""
    from agent.models.planning import plan_run

    plan = plan_run(config, name)
    _note(f"{', '.join(model.name for model in config.asked)}: {plan}")
    if yes or not plan.requests:
        return
    if sys.stdin.isatty():
        typer.confirm("go on?", abort=True, err=True)
    elif plan.usd:
        raise ConfigError("this costs money and nobody can be asked: pass --yes to go on")


@app.command("bench")
def _bench(
    given: Annotated[
        str, typer.Argument(metavar="INPUT", help="Folder, KernelBench run, JSON lines, or a run.")
    ],
    suite: Annotated[
        list[str] | None, typer.Option(help="Such as kernelbench:PATH:level1.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; bench/INPUT otherwise.")] = None,
    device: Device = "auto",
    preset: Preset = "quick",
    seconds: Annotated[float | None, typer.Option(help="Begin nothing after so long.")] = None,
    as_json: Json = False,
) -> None:
    """Score a set of kernels on a suite; the same command goes on where it stopped."""
    from agent.runs import interruptible
    from kernelbench.bench_view import Progress, report_view

    progress = Progress(_note)
    with interruptible(partial(_note, "stopping after what is under way")) as interrupted:
        report = bench(
            given,
            suite or ["builtin"],
            out=out,
            device=device,
            preset=preset,
            seconds=seconds,
            interrupted=interrupted,
            on_row=progress.row,
            on_fault=progress.fault,
        )
        stopped = interrupted()
    _answer(report, as_json, lambda c: c.print(report_view(report)))
    if stopped:
        raise typer.Exit(INTERRUPTED)


@app.command("compare")
def _compare(a: Path, b: Path, as_json: Json = False) -> None:
    """Whether bench B differs from bench A by more than noise, and in which tasks."""
    from kernelbench.bench_view import comparison_view
    from kernelbench.comparison import compare, comparison_record, read_bench

    (before, bad), (after, worse) = read_bench(a), read_bench(b)
    for line in (*bad, *worse):
        _note(line)
    found = compare(before, after)
    _answer(comparison_record(found), as_json, lambda c: c.print(comparison_view(found)))


@app.command("report")
def _report(
    run: Annotated[str, typer.Argument(help="A run or a bench: its name or folder.")],
    to: Annotated[Path | None, typer.Option(help="File; report.html in its folder else.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A summary for a README; on stdout without --to.")
    ] = False,
    reference: Annotated[
        list[Path] | None, typer.Option(help="A bench whose fast_p is drawn beside its own.")
    ] = None,
) -> None:
    """What a campaign or a bench has found so far, as one page that needs no network."""
    from agent.report.find import summary_of

    if markdown and to is None:
        typer.echo(summary_of(run), nl=False)
    else:
        typer.echo(report(run, to, markdown=markdown, references=reference or ()))


@app.command("replay")
def _replay(
    run: str, name: Annotated[str | None, typer.Option(help="Of the new run.")] = None
) -> None:
    """Decide a run again from its journal: no network, no device; exits with 1 if it differs."""
    from rich.console import Console

    from agent.progress import show_result

    result, found = replay(run, name=name)
    show_result(Console(), result, f"replay of {run}")
    _say([*found, f"{len(found)} tasks differ" if found else "the same decisions"])
    if found:
        raise typer.Exit(FAILED)


@app.command("show")
def _show(
    run: str,
    as_json: Json = False,
    with_timings: Annotated[
        bool, typer.Option("--timings", help="Seconds by stage and device, how busy lanes were.")
    ] = False,
) -> None:
    """What a run has found so far."""
    from agent.runs import find_run
    from agent.show import overview_record, read_overview, show_overview

    found = read_overview(find_run(run))
    record = overview_record(found, with_timings=with_timings)
    _answer(record, as_json, lambda c: show_overview(c, found, with_timings=with_timings))


@app.command("audit")
def _audit(
    run: str,
    as_json: Json = False,
    sources: Annotated[bool, typer.Option(help="Print each winner's source.")] = True,
) -> None:
    """Why each winner's speedup may be believed, or not: evaluations, evidence, origin, source."""
    from agent.audit import audit_run
    from agent.audit_view import show_audit
    from agent.journal import Journal
    from agent.runs import find_run

    with Journal(find_run(run), read_only=True) as journal:
        found = audit_run(journal)
    _answer(found, as_json, lambda c: show_audit(c, found, sources=sources))


@data_app.command("tasks")
def _data_tasks(
    to: To,
    count: Annotated[int, typer.Option(help="So many compositions are tried.")] = 2000,
    kind: Annotated[str, typer.Option(help="rows (row programs) or any.")] = "any",
    seed: Annotated[int, typer.Option(help="Another seed, other compositions.")] = 0,
    against: Annotated[
        list[str] | None, typer.Option(help="Suites it is evaluated on; builtin otherwise.")
    ] = None,
    device: Device = "auto",
    preset: Preset = "quick",
    max_seconds: MaxSeconds = None,
) -> None:
    """Synthetic tasks that can be scored, unlike those of evaluation suites; goes on if stopped."""
    from agent.config import load_evaluation
    from kernelbench.suite import load_tasks
    from kernelbench.synthetic_folder import Folder
    from sandbox.evaluator import LocalEvaluator

    tasks = load_tasks(f"synthetic:{kind}:{count}@{seed}", device)
    suites = [task for spec in against or ["builtin"] for task in load_tasks(spec, device)]
    with closing(LocalEvaluator(device)) as evaluator:
        made = Folder(to).fill(
            tasks,
            suites,
            evaluator,
            evaluator.facts.environment,
            load_evaluation(preset),
            seconds=max_seconds,
            on_row=lambda row: _note(f"{row.task_id}: {row.verdict} {row.reason}"),
        )
    typer.echo(made)


@data_app.command("examples")
def _data_examples(
    runs: Annotated[list[str], typer.Argument(help="Runs whose verified kernels are taken.")],
    to: To,
    config: TrainConfig = "small",
    per_task: Annotated[int | None, typer.Option(help="The fastest so many, of each kind.")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Suites whose tasks, and those like them, are left out."),
    ] = None,
) -> None:
    """Training data from journals: verified kernels, repairs and contrasts, split and distinct."""
    from agent.runs import find_run
    from rl.opening import open_training

    settings = open_training(config)
    from rl.data import dataset_of, save_dataset

    dataset = dataset_of([find_run(run) for run in runs], settings, per_task, against or ())
    save_dataset(dataset, to)
    _say(f"{name}: {len(rows)} examples" for name, rows in dataset.items())


@train_app.command("sft")
def _train_sft(
    data: Annotated[Path, typer.Option(help="Of `warpsmith data examples`.")],
    to: Annotated[Path, typer.Option(help="Folder of the checkpoint; an unfinished one goes on.")],
    config: TrainConfig = "small",
    start: Annotated[Path | None, typer.Option(help="Checkpoint to go on from.")] = None,
) -> None:
    """Stage 1: supervised fine-tuning on verified kernels."""
    from rl.opening import open_training
    from sandbox.doctor import resolve_device

    settings = open_training(config)
    from rl.data import load_examples
    from rl.sft import sft

    typer.echo(sft(load_examples(data), settings, to, resolve_device(settings.device), start))


@train_app.command("self")
def _train_self(
    start: Annotated[Path, typer.Option(help="Checkpoint of `train sft`.")],
    to: Annotated[Path, typer.Option(help="Folder; an unfinished one goes on.")],
    name: Annotated[str, typer.Option(help="Begins the names of the runs that sample.")],
    config: TrainConfig = "small",
    max_seconds: Annotated[float | None, typer.Option(help="Of a round's sampling.")] = None,
) -> None:
    """Stage 2: sample, evaluate, keep what passes, fine-tune; again."""
    from agent.runs import find_run
    from rl.opening import open_training
    from sandbox.doctor import resolve_device

    settings = open_training(config)
    from rl.campaign import sampling
    from rl.self_supervised import self_supervised

    def sample(policy: Path, number: int) -> Path:
        run = f"{name}-{number}"
        optimize(config=sampling(config, settings, policy, max_seconds), name=run)
        return find_run(run)

    device = resolve_device(settings.device)
    last = self_supervised(
        start, sample, settings, to, device, lambda number, fitted: typer.echo(fitted)
    )
    typer.echo(last)


@train_app.command("rl")
def _train_rl(
    start: Annotated[Path, typer.Option(help="Checkpoint of `train sft` or `train self`.")],
    name: Annotated[str, typer.Option(help="Of the run; an old one goes on.")],
    config: TrainConfig = "small",
    max_seconds: MaxSeconds = None,
) -> None:
    """Stage 3: contrastive RL, as `optimize --learn` on the config's training tasks."""
    from rl.opening import open_training

    settings = open_training(config)
    from rl.campaign import reinforcing

    result = optimize(config=reinforcing(config, settings, start, max_seconds), name=name)
    _say_how_to_go_on(result, name)


@train_app.command("judge")
def _train_judge(
    policy: Annotated[Path, typer.Option(help="Folder of the checkpoint.")],
    name: Annotated[str, typer.Option(help="Of the run; an old one goes on.")],
    config: TrainConfig = "small",
    split: Annotated[
        list[str] | None, typer.Option(help="train, held_out_task, held_out_family.")
    ] = None,
    max_seconds: MaxSeconds = None,
    as_json: Json = False,
) -> None:
    """One greedy reply to each held-out task: how many pass, and how fast they are."""
    from agent.runs import find_run
    from rl.opening import open_training

    settings = open_training(config)
    from rl.campaign import judging
    from rl.judging import judged_run

    chosen = judging(config, settings, policy, split, max_seconds)
    result = optimize(config=chosen, name=name)
    found = judged_run(find_run(name), settings.held_out)
    _answer(found, as_json, lambda _: _say(found))
    _say_how_to_go_on(result, name)


@app.command("export")
def _export(
    runs: list[str],
    to: To,
    format: Annotated[
        list[str],
        typer.Option(help="modelnew, package, kernels, kernelbench or flashinfer; also several."),
    ] = ["modelnew"],  # noqa: B006  typer reads it
    package: Annotated[str, typer.Option(help="Its import name.")] = "tuned_kernels",
    licence: Annotated[str, typer.Option(help="Of the kernels, SPDX.")] = "unknown",
    arch: Annotated[
        list[str] | None, typer.Option(help="Compile cuda kernels ahead for it too: sm_90.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Write the winners of runs as files, as a package with dispatch, or for other tools."""
    archs = arch or ()
    _say(
        export(
            *(runs, to),
            format=format,
            package=package,
            licence=licence,
            archs=archs,
            device=device,
        )
    )


@app.command("revalidate")
def _revalidate(folder: Path, device: Device = "auto") -> None:
    """Judge an exported package's kernels again here; exits with 1 unless all still win."""
    from agent.export.revalidate import lines

    outcomes = revalidate(folder, device=device)
    _say(lines(outcomes))
    if not all(outcome.verdict.fine for outcome in outcomes):
        raise typer.Exit(FAILED)


@app.command("extract")
def _extract(
    model: Annotated[Path, typer.Argument(metavar="MODEL.py")],
    to: To,
    top: Annotated[int, typer.Option(help="So many tasks, the costliest first.")] = 8,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write the costliest operators and fusible regions of a model as tasks for `optimize`."""
    from agent.extraction.report import lines
    from sandbox.records import to_record

    found = extract(model, to, top=top, device=device)
    if as_json:
        typer.echo(json.dumps(to_record(found.extraction) | {"files": list(map(str, found.files))}))
    else:
        _say([*lines(found.extraction, found.names), f"to go on: warpsmith optimize {to}"])


@app.command("apply")
def _apply(
    model: Annotated[Path, typer.Argument(metavar="MODEL.py")],
    library: Annotated[str, typer.Option(help="Exported folder, or an installed package.")],
    pairs: Annotated[int, typer.Option(help="Fresh processes behind the interval.")] = 4,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Put a library's operators into a model; exits with 1 if none of them stays."""
    from agent.substitution.report import lines
    from sandbox.records import to_record

    found = apply(model, library, pairs=pairs, device=device, tell=_note)
    _say([json.dumps(to_record(found))] if as_json else lines(found))
    if not found.kept:
        raise typer.Exit(FAILED)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: a WarpsmithError is one line on stderr and exit code 2."""
    try:
        app(arguments)
    except WarpsmithError as error:
        typer.echo(f"warpsmith: {error}", err=True)
        sys.exit(UNUSABLE)


if __name__ == "__main__":
    main()
