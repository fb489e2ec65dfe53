"""`warpsmith data` and `warpsmith train`: what a policy learns from, and its stages apart.

What training needs is looked for before a module of `rl` that imports it: see rl/opening.py.
"""

from __future__ import annotations

import sys
from contextlib import closing, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

import warpsmith
from agent.commands.options import Device, Json, MaxSeconds, Preset, To, bounded
from agent.commands.output import (
    answer,
    exit_if_interrupted,
    going_on,
    note,
    say,
    say_how_to_go_on,
)
from agent.limits import ABOVE_0, Least
from sandbox.errors import ConfigError
from sandbox.words import number_of

TrainConfig = Annotated[str, typer.Option(help="Preset of configs/train, or a file.")]


def make_tasks(
    to: To,
    count: Annotated[
        int, typer.Option(help="So many compositions are tried.", callback=bounded(Least(1)))
    ] = 2000,
    kind: Annotated[str, typer.Option(help="rows (row programs) or any.")] = "any",
    seed: Annotated[
        int, typer.Option(help="Another seed, other compositions.", callback=bounded(Least(0)))
    ] = 0,
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
    from kernelbench.synthetic import KINDS
    from kernelbench.synthetic_folder import Folder
    from sandbox.evaluator import LocalEvaluator

    if kind not in KINDS:
        raise ConfigError(f"--kind is {kind!r}; expected {' or '.join(map(repr, KINDS))}")
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
            on_row=lambda row: note(f"{row.task_id}: {row.verdict} {row.reason}"),
        )
    typer.echo(made)


def make_examples(
    runs: Annotated[list[str], typer.Argument(help="Runs whose verified kernels are taken.")],
    to: To,
    config: TrainConfig = "small",
    per_task: Annotated[
        int | None,
        typer.Option(help="The fastest so many, of each kind.", callback=bounded(Least(1))),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Suites whose tasks, and those like them, are left out."),
    ] = None,
    made: Annotated[
        list[str] | None,
        typer.Option(
            help="SUITE=COUNT: so many kernels of the feature proposer's for each task, unjudged."
        ),
    ] = None,
) -> None:
    """Training data from journals: verified kernels, repairs and contrasts, split and distinct."""
    from agent.runs import find_run
    from rl.opening import open_training

    wanted = dict(map(_counted, made or ()))
    settings = open_training(config)
    from rl.config import refuse_evaluated
    from rl.data import dataset_of, known_of, refuse_existing, save_dataset
    from rl.made import made_examples
    from sandbox.doctor import resolve_device

    refuse_existing(to)
    refuse_evaluated(wanted, settings.transductive)

    folders = [find_run(run) for run in runs]
    evaluated = known_of(against or (), resolve_device(settings.device))
    kernels = made_examples(wanted, folders[0], evaluated, settings.exemplars) if wanted else ()
    dataset = dataset_of(folders, settings, per_task, evaluated, kernels)
    save_dataset(dataset, to)
    say(f"{name}: {number_of(len(rows), 'example')}" for name, rows in dataset.items())
    if against:
        left_out = number_of(len(evaluated.met), "composition")
        say([f"left out: {left_out} too like a task of {', '.join(against)}"])


def _counted(made: str) -> tuple[str, int]:
    suite, _, count = made.rpartition("=")
    if not suite:
        return made, 1
    if not count.isdigit() or int(count) < 1:
        raise ConfigError(f"--made is {made!r}; expected SUITE=COUNT, such as builtin=20")
    return suite, int(count)


def _refuse_missing(checkpoint: Path) -> None:
    """Said before what takes seconds to import."""
    if not checkpoint.is_dir():
        raise ConfigError(f"{checkpoint}: no such folder; expected a transformers checkpoint's")


def train_sft(
    data: Annotated[Path, typer.Option(help="Of `warpsmith data examples`.")],
    to: Annotated[Path, typer.Option(help="Folder of the checkpoint; an unfinished one goes on.")],
    config: TrainConfig = "small",
    start: Annotated[Path | None, typer.Option(help="Checkpoint to go on from.")] = None,
) -> None:
    """Stage 1: supervised fine-tuning on verified kernels; on several devices, by `accelerate`."""
    from rl.opening import open_training, refuse_unknown
    from sandbox.doctor import resolve_device

    settings = open_training(config)
    refuse_unknown(settings)
    if not data.is_dir():  # Said before what takes seconds to import.
        raise ConfigError(f"{data}: no such folder; `warpsmith data examples` makes training data")
    from accelerate import PartialState

    from rl.data import load_examples
    from rl.sft import sft

    with going_on("the same command"):
        fitted = sft(load_examples(data), settings, to, resolve_device(settings.device), start)
    if PartialState().is_main_process:
        typer.echo(fitted)


def train_self(
    start: Annotated[Path, typer.Option(help="Checkpoint of `train sft`.")],
    to: Annotated[Path, typer.Option(help="Folder; an unfinished one goes on.")],
    name: Annotated[str, typer.Option(help="Begins the names of the runs that sample.")],
    config: TrainConfig = "small",
    max_seconds: Annotated[
        float | None, typer.Option(help="Of a round's sampling.", callback=bounded(ABOVE_0))
    ] = None,
) -> None:
    """Stage 2: sample, evaluate, keep what passes, fine-tune; again; by `torchrun` on many GPUs."""
    from agent.runs import check_name, find_run
    from rl.opening import open_training
    from sandbox.doctor import resolve_device

    check_name(name)
    settings = open_training(config)
    from accelerate import PartialState

    from rl.campaign import sampling
    from rl.joining import followed, go_on
    from rl.self_supervised import round_of, self_supervised
    from rl.sft import has_begun

    def sample(policy: Path, number: int) -> Path:
        run = f"{name}-{number}"
        # What has begun learns from what there was then, whatever time is left.
        if not has_begun(round_of(to, number)) and not followed(settings, device):
            sampled(run, policy)
            go_on()
        return find_run(run)

    def sampled(run: str, policy: Path) -> None:
        chosen = sampling(config, settings, policy, max_seconds)
        result = warpsmith.optimize(config=chosen, name=run)
        if result.interrupted:  # Else it would be fine-tuned on what there is so far.
            say_how_to_go_on(result, name)
        exit_if_interrupted(result)

    def tell(words: object) -> None:
        if PartialState().is_main_process:
            typer.echo(words)

    device = resolve_device(settings.device)
    with going_on(f"the same command with --name {name}"):
        last = self_supervised(
            start, sample, settings, to, device, lambda number, fitted: tell(fitted)
        )
    tell(last)


def train_rl(
    start: Annotated[Path, typer.Option(help="Checkpoint of `train sft` or `train self`.")],
    name: Annotated[str, typer.Option(help="Of the run; an old one goes on.")],
    config: TrainConfig = "small",
    max_seconds: MaxSeconds = None,
) -> None:
    """Stage 3: contrastive RL, as `optimize --learn` on the config's training tasks."""
    from agent.runs import check_name, find_run
    from rl.opening import open_training

    check_name(name)
    settings = open_training(config)
    _refuse_missing(start)
    from rl.campaign import reinforcing
    from rl.grpo import led_to

    result = warpsmith.optimize(config=reinforcing(config, settings, start, max_seconds), name=name)
    typer.echo(led_to(find_run(name), start, settings.rl.updates))
    say_how_to_go_on(result, name)
    exit_if_interrupted(result)


def train_judge(
    policy: Annotated[Path, typer.Option(help="Folder of the checkpoint.")],
    name: Annotated[str, typer.Option(help="Of the run; an old one goes on.")],
    config: TrainConfig = "small",
    split: Annotated[
        list[str] | None, typer.Option(help="train, held_out_task, held_out_family, held_out_size.")
    ] = None,
    max_seconds: MaxSeconds = None,
    as_json: Json = False,
) -> None:
    """One greedy reply to each held-out task: how many pass, and how fast they are."""
    from agent.runs import check_name, find_run
    from rl.opening import open_training

    check_name(name)
    settings = open_training(config)
    _refuse_missing(policy)
    from rl.campaign import judging
    from rl.judging import judged_run

    chosen = judging(config, settings, policy, split, max_seconds)
    # As JSON the answer is alone on stdout: the campaign's table is none.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        result = warpsmith.optimize(config=chosen, name=name)
    found = judged_run(find_run(name), settings.held_out)
    answer(found, as_json, lambda _: say(found))
    say_how_to_go_on(result, name)
    exit_if_interrupted(result)
