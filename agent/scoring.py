"""Suites judged as a user names them: the admission of one, and a bench of kernels of any form."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config import OptimizeConfig, load_evaluation, load_optimize, protocol_of
from agent.engines.engine import LaneEngine
from agent.engines.evaluating import POLL_S, EngineJudge
from agent.export.modelnew import export_run
from agent.journals.journal import FILE
from agent.keys import nearest
from agent.launch import open_engine
from agent.runs import RUNS, find_run, run_names
from agent.types import Measured
from kernelbench.admission import choose, validate_tasks
from kernelbench.bench import Bench
from kernelbench.bench_report import Report
from kernelbench.results import Reference, Row
from kernelbench.submissions import FORMS, Found, read_submissions
from kernelbench.suite import load_suite, load_tasks, suite_version
from sandbox.admission import Admission
from sandbox.building.language import no_gpu
from sandbox.doctor import gpu_count
from sandbox.errors import ConfigError, SandboxFault, WarpsmithError
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Task


def admit(
    spec: str,
    only: Sequence[str],
    device: str,
    preset: str,
    *,
    path: Path | None,
    seconds: float | None,
    compiled: bool,
    on_row: Callable[[Admission], None],
    on_fault: Callable[[Task, SandboxFault], None],
) -> tuple[list[Admission], list[Task]]:
    """`validate_tasks` of those tasks of a suite that a pattern of `only` matches, on a device."""
    config, tasks = load_evaluation(preset), choose(load_tasks(spec, device), only)
    with closing(LocalEvaluator(device)) as evaluator:
        return validate_tasks(
            tasks,
            evaluator,
            evaluator.facts.environment,
            config,
            path=path,
            seconds=seconds,
            compiled=compiled,
            on_row=on_row,
            on_fault=on_fault,
        )


@dataclass(frozen=True)
class Told:
    """Whom a bench tells what; `Bench.run` says when."""

    row: Callable[[Row, int], None] = lambda _, __: None
    reference: Callable[[Reference, int], None] = lambda _, __: None
    fault: Callable[[str, str], None] = lambda _, __: None
    prepared: Callable[[Task, Measured | WarpsmithError, int], None] = lambda _, __, ___: None


def place(
    device: str, engine: str | None, ray_address: str | None, gpu_type: str | None
) -> OptimizeConfig:
    """Where a bench runs, by the settings of a campaign; the device is resolved. Ray by default
    where there are several GPUs, or something of it is asked for. Raises ConfigError where a kind
    of GPU is, and the device is none.
    """
    if gpu_type and device == "cpu":
        raise ConfigError(f"--gpu-type {gpu_type}: the device is the CPU; take --device cuda")
    if engine is None:
        several = device == "cuda" and gpu_count() > 1
        engine = "ray" if several or ray_address or gpu_type else "local"
    return load_optimize(
        typed=True, device=device, engine=engine, ray_address=ray_address, gpu_type=gpu_type
    )


def score(
    given: str | Path | None,
    suite: Sequence[str],
    folder: Path,
    where: OptimizeConfig,
    preset: str,
    *,
    only: Sequence[str],
    fit_memory: bool,
    seconds: float | None,
    interrupted: Callable[[], bool],
    told: Told,
) -> Report:
    """Evaluates what the folder does not hold yet, and reports on all: of the suite's tasks those
    that a pattern of `only` matches. Of `where` count the device, which is resolved, and the
    engine. Without kernels references and baselines alone are timed. `fit_memory`: what has no room
    is taken at a smaller batch.
    """
    device, began = where.device, time.monotonic()
    config, every = load_evaluation(preset), load_suite(suite, device)
    tasks = choose(every, only)
    read = Found() if given is None else _kernels_for(every, tasks, given, suite, folder)
    found = [submission.candidate.language for submission in read.submissions]
    if device == "cpu" and found and all(language.needs_gpu for language in found):
        raise ConfigError(f"{given}: {no_gpu(found[0])}")

    def over() -> bool:
        return interrupted() or (seconds is not None and time.monotonic() - began > seconds)

    about = {
        "input": "" if given is None else str(given),
        "suite": shlex.join(suite),
        "suite_version": " ".join(filter(None, map(suite_version, suite))),
        "only": shlex.join(only),
        "device": device,
        "preset": preset,
        "protocol": "" if (words := protocol_of(config)) == preset else words,
        "fit_memory": "yes" if fit_memory else "",
        "taught these tasks": ", ".join(sorted({s.taught for s in read.submissions} - {""})),
    }
    with closing(open_engine(where)) as engine:
        bench = Bench(
            tasks,
            read.submissions,
            config,
            environment_of(engine, interrupted),
            folder,
            about,
            tuple(map(str, read.problems)),
            fit_memory,
            empty=given is not None and not read.submissions,
        )
        judge = EngineJudge(engine, over, told.prepared)
        bench.run(judge, on_row=told.row, on_reference=told.reference, on_fault=told.fault)
    return bench.write()


def environment_of(engine: LaneEngine, interrupted: Callable[[], bool]) -> Mapping[str, str]:
    """Of a lane, once one is open: another campaign may hold it. Raises KeyboardInterrupt for an
    interrupt before that, of which nothing is to be finished.
    """
    asked = engine.submit_environment()
    while wait([asked], timeout=POLL_S).not_done:
        if interrupted():
            raise KeyboardInterrupt
    return asked.result()


def bench_name(given: str | Path | None) -> str:
    """Of the folder of an input's bench: a folder's name is whole, a journal's is its run's."""
    if given is None:
        return "baselines"
    path = Path(given).resolve()
    path = path.parent if path.name == FILE else path
    return path.stem if path.is_file() else path.name


def _kernels_for(
    every: Sequence[Task],
    tasks: Sequence[Task],
    given: str | Path,
    suite: Sequence[str],
    folder: Path,
) -> Found:
    """Those of the chosen tasks; a kernel of another one of the suite is no problem."""
    kernels, chosen = kernels_of(given, folder), {task.id for task in tasks}
    read = read_submissions(kernels, every)
    read = replace(
        read, submissions=tuple(s for s in read.submissions if s.candidate.task_id in chosen)
    )
    if not read.submissions and kernels == Path(given):  # a campaign may have won nothing
        why = f": {read.problems[0]}" if read.problems else ""
        raise ConfigError(
            f"{given}: no kernel for {' '.join(suite)} in it{why}; expected {FORMS}, with files "
            "named after tasks"
        )
    return read


def kernels_of(given: str | Path, folder: Path) -> Path:
    """The input itself, or the winners of a campaign, exported into the bench's folder."""
    if not str(given):  # an unset variable of a script, which a Path takes for the current folder
        raise ConfigError(f"the input is ''; expected {FORMS}")
    path = Path(given)
    if path.name == FILE and path.is_file():
        path = path.parent
    if (path / FILE).is_file() or (not path.exists() and (RUNS / path / FILE).is_file()):
        return export_run(find_run(str(path)), folder / "kernels")[-1].parent
    if not path.exists():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        meant = nearest(str(path), [*run_names(), *map(str, beside)])
        hint = f"did you mean {meant!r}?" if meant else f"expected {FORMS}"
        raise ConfigError(f"{given}: no such input; {hint}")
    return path
