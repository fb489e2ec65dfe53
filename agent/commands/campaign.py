"""The search: `warpsmith optimize`, and `warpsmith prompt` for what it would ask a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import warpsmith
from agent.commands.options import Config, MaxSeconds, Strategy
from agent.commands.output import command_again, exit_if_interrupted, note, say_how_to_go_on
from sandbox.errors import ConfigError

if TYPE_CHECKING:
    from agent.config import OptimizeConfig


def prompt(
    task: str,
    strategy: Strategy = None,
    run: Annotated[str | None, typer.Option(help="What would be asked next in this run.")] = None,
    language: Annotated[str | None, typer.Option(help="cpp, cuda, cuda_inline, triton.")] = None,
    config: Config = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
) -> None:
    """Print what a model would be asked about a task; nothing is sent."""
    from agent.config import load_optimize
    from agent.device import resolved
    from agent.runs import CONFIG, find_run
    from agent.views.asking import asks_text, next_asks
    from kernelbench.suite import load_task
    from sandbox.doctor import describe

    folder = None if run is None else find_run(run)
    if folder is not None and config is None and (folder / CONFIG).is_file():
        config = str(folder / CONFIG)
    given = load_optimize(config, typed=True, strategy=strategy, device=device, language=language)
    settings = resolved(given)
    device = settings.device
    asks = next_asks(load_task(task, device), settings, describe(device), folder)
    typer.echo(asks_text(asks) if asks else "the strategy has nothing more to ask")


def optimize(
    context: typer.Context,
    tasks: Annotated[list[str] | None, typer.Argument(help="Instead of the config's.")] = None,
    model: Annotated[
        str | None, typer.Option(help="At OPENAI_BASE_URL, or local:FOLDER of a checkpoint.")
    ] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Train the local model on it.")] = False,
    train: Annotated[
        str | None, typer.Option(help="How the local model samples and learns: preset or file.")
    ] = None,
    own_gpu: Annotated[
        bool, typer.Option("--own-gpu", help="The local model's is no lane's.")
    ] = False,
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
    """Search for faster kernels; the same command with the same --name goes on after a stop.

    Exits with 0, won or not, with 2 if no candidate was tried, with 130 after Ctrl-C.
    """
    from agent.config import load_optimize
    from agent.runs import check_name, new_name

    name = new_name() if name is None else check_name(name)
    settings = load_optimize(
        config,
        typed=True,
        tasks=tuple(tasks) if tasks else None,
        model=model,
        learn=learn or None,
        train=train,
        own_gpu=own_gpu or None,
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
    _refuse_unasked(
        settings,
        {"--strategy": strategy, "--language": language},
        {"--export-requests": export_requests, "--import-replies": import_replies},
    )
    if export_requests is not None and not export_requests.parent.is_dir():
        raise ConfigError(f"--export-requests: {export_requests.parent}: no such folder; make it")
    if export_requests is not None and export_requests.is_dir():
        raise ConfigError(f"--export-requests: {export_requests}: is a folder; name a file in it")
    if export_requests is not None and export_requests.exists() and not export_requests.is_file():
        raise ConfigError(f"--export-requests: {export_requests}: is a device; name a file")
    imported = {replies.resolve() for replies in import_replies or ()}
    if export_requests is not None and export_requests.resolve() in imported:
        raise ConfigError(
            f"--export-requests: {export_requests}: holds the replies of --import-replies; "
            "name another file"
        )
    if settings.asked and export_requests is None and not import_replies:
        _agree(settings, name, yes)
    result = warpsmith.optimize(
        config=settings,
        name=name,
        export_requests=export_requests,
        import_replies=import_replies or (),
    )
    exported = export_requests if result.awaiting else None
    if exported is not None:
        replies = import_replies or [exported.with_name("replies.jsonl")]
        again = command_again(context, name=name, import_replies=replies)
        note(f"to go on, once {' '.join(map(str, replies))} holds the replies: {again}")
    else:
        say_how_to_go_on(result, name)
    exit_if_interrupted(result)
    if not result.tried and exported is None:
        raise typer.Exit(warpsmith.UNUSABLE)


def _refuse_unasked(
    config: OptimizeConfig, of_any: Mapping[str, object], at_endpoints: Mapping[str, object]
) -> None:
    """Raises ConfigError for the first option given that no model is asked by."""
    unused = [name for name, given in at_endpoints.items() if given and not config.asked]
    if unused:
        raise ConfigError(f"{unused[0]} is for models at an endpoint; expected --model NAME")
    asks = config.asked or config.local is not None
    unused = [name for name, given in of_any.items() if given is not None and not asks]
    if unused:
        remedy = "add --model NAME, or leave it out"
        raise ConfigError(f"{unused[0]} is for models, and none is asked; {remedy}")


def _agree(config: OptimizeConfig, name: str, yes: bool) -> None:
    """Say what will be asked of models; ask first, where there is somebody to ask."""
    from agent.models.planning import plan_run

    plan = plan_run(config, name)
    note(f"{', '.join(model.name for model in config.asked)}: {plan}")
    if yes or not plan.requests:
        return
    if sys.stdin.isatty():
        typer.confirm("go on?", abort=True, err=True)
    elif plan.usd:
        raise ConfigError("this costs money and nobody can be asked: pass --yes to go on")
