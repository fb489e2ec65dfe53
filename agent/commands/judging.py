"""Kernels that are there already: one judged, a set of them scored, two scores compared."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import warpsmith
from agent.commands.options import Device, Json, Preset, Seconds
from agent.commands.output import answer, note, say


def evaluate(
    task: str,
    kernel: Path,
    language: Annotated[str | None, typer.Option(help="Told from the file otherwise.")] = None,
    device: Device = "auto",
    preset: Preset = "quick",
    as_json: Json = False,
) -> None:
    """Judge and time one kernel file; exits with 0 if it passed and 1 if it failed."""
    from agent.views.progress import evaluation_lines, evaluation_record

    result = warpsmith.evaluate(task, kernel, language=language, device=device, preset=preset)
    answer(evaluation_record(result), as_json, lambda _: say(evaluation_lines(result)))
    if not result.passed:
        raise typer.Exit(warpsmith.FAILED if result.status.scored else warpsmith.UNUSABLE)


def bench(
    given: Annotated[
        str | None,
        typer.Argument(
            metavar="[INPUT]",
            help="Folder, KernelBench run, JSON lines, or a run. Without it baselines are timed.",
        ),
    ] = None,
    suite: Annotated[
        list[str] | None, typer.Option(help="Such as kernelbench:PATH:level1.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Ids such as softmax or *Conv*.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; bench/INPUT otherwise.")] = None,
    device: Device = "auto",
    preset: Preset = "quick",
    engine: Annotated[
        str | None, typer.Option(help="ray or local; ray where there are several GPUs.")
    ] = None,
    ray_address: Annotated[str | None, typer.Option(help="Of a running cluster.")] = None,
    gpu_type: Annotated[str | None, typer.Option(help="Ray's name of it, such as H100.")] = None,
    fit_memory: Annotated[
        bool, typer.Option("--fit-memory", help="Halve batches that have no room; apart.")
    ] = False,
    seconds: Seconds = None,
    as_json: Json = False,
) -> None:
    """Score a set of kernels on a suite; the same command goes on where it stopped."""
    from agent.runs import interruptible
    from agent.scoring import Told
    from kernelbench.bench_view import Progress, report_view

    progress = Progress(note)
    with interruptible(partial(note, "stopping after what is under way")) as interrupted:
        report = warpsmith.bench(
            given,
            suite or ["builtin"],
            only=only or (),
            out=out,
            device=device,
            preset=preset,
            engine=engine,
            ray_address=ray_address,
            gpu_type=gpu_type,
            fit_memory=fit_memory,
            seconds=seconds,
            interrupted=interrupted,
            told=Told(progress.row, progress.reference, progress.fault, progress.prepared),
        )
        stopped = interrupted()
    answer(report, as_json, lambda c: c.print(report_view(report)))
    if stopped:
        raise typer.Exit(warpsmith.INTERRUPTED)


def compare(a: Path, b: Path, as_json: Json = False) -> None:
    """Whether bench B differs from bench A by more than noise, and in which tasks."""
    from kernelbench.bench_view import comparison_view
    from kernelbench.comparison import compare, comparison_record, read_bench

    (before, bad), (after, worse) = read_bench(a), read_bench(b)
    for line in (*bad, *worse):
        note(line)
    found = compare(before, after)
    answer(comparison_record(found), as_json, lambda c: c.print(comparison_view(found)))
