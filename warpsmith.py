"""The front door: the verbs as Python functions, and the console script that offers them.

    import warpsmith
    evaluation = warpsmith.evaluate("builtin/softmax", "kernel.py")
    result = warpsmith.optimize(["builtin/softmax"], name="first", max_candidates=20)
    files = warpsmith.export("first", "out")
    tasks = warpsmith.extract("model.py", "tasks")
    outcome = warpsmith.apply("model.py", "out")

It imports lazily, wires the parts and holds no logic of its own. What is typed is parsed in
`agent/commands/`, whose app.py lists every verb.
"""

from __future__ import annotations

import errno
import sys

if sys.version_info < (3, 11) or sys.platform != "linux":
    raise SystemExit("warpsmith needs Linux and Python 3.11 or newer")

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.errors import ConfigError, WarpsmithError

if TYPE_CHECKING:
    from agent.config import OptimizeConfig
    from agent.export.revalidate import Outcome
    from agent.extraction.extract import Extracted
    from agent.journals.outcome import CampaignResult
    from agent.replay import Difference
    from agent.scoring import Told
    from agent.substitution.report import Application
    from kernelbench.bench_report import Report
    from sandbox.types import Evaluation

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130
"""Exit codes: the candidate failed; the call could not go on; Ctrl-C."""


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
    from sandbox.building.language import no_gpu, read_candidate
    from sandbox.doctor import resolve_device
    from sandbox.evaluator import LocalEvaluator

    config = load_evaluation(preset)
    the_task = load_task(task, resolve_device(device))
    candidate = read_candidate(Path(kernel), the_task.id, language)
    if the_task.device == "cpu" and candidate.language.needs_gpu:
        raise ConfigError(f"{kernel}: {no_gpu(candidate.language)}")
    with closing(LocalEvaluator(the_task.device)) as evaluator:
        return evaluator.evaluate(the_task, candidate, config)


def optimize(
    tasks: str | Sequence[str] | None = None,
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
    export requests to, or files to import replies from, nothing is sent to a model's endpoint. Of
    several processes that a launcher started for a local policy, only the first returns.
    """
    from agent.config import OptimizeConfig, load_optimize
    from agent.device import resolved
    from agent.launch import launch
    from agent.runs import new_name
    from rl.opening import local_policy

    if not isinstance(config, OptimizeConfig):
        named = [tasks] if isinstance(tasks, str) else tasks
        chosen = tuple(named) if named else None
        config = load_optimize(config, typed=False, tasks=chosen, **overrides)
    config = resolved(config)
    with local_policy(config) as (config, policy):
        return launch(
            config,
            new_name() if name is None else name,
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
    return replay_run(folder, f"{folder.name}-replay" if name is None else name)


def export(
    runs: str | Sequence[str],
    to: str | Path,
    *,
    format: str | Sequence[str] = "modelnew",
    package: str = "tuned_kernels",
    licence: str = "unknown",
    archs: Sequence[str] = (),
    device: str = "auto",
    tell: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write the winners of runs in one form, or in several, each in a folder: `warpsmith export`.

    Forms are `modelnew`, `package`, `kernels`, `kernelbench` and `flashinfer`; `package` names the
    package or repository, `licence` is the kernels' SPDX identifier, `archs` such as `sm_90` get
    binaries beside those measured. `device` is where converted kernels are judged again. A run
    without a win is told in a line.
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
    return export_formats(folders, Path(to), formats, resolved, make_evaluator, tell)


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
    compiled: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Application:
    """Put a library's operators into a user's model, as `warpsmith apply` does: what fits, whether
    outputs and gradients stay right, and latency before and after over `pairs` fresh processes;
    with `compiled` also that of the model as it is under torch.compile.
    """
    from agent.substitution.apply import apply as put_in
    from sandbox.doctor import resolve_device

    where = resolve_device(device)
    return put_in(Path(model), str(library), where, pairs, tell, compiled=compiled)


def bench(
    given: str | Path | None = None,
    suite: Sequence[str] = ("builtin",),
    *,
    only: Sequence[str] = (),
    out: str | Path | None = None,
    device: str = "auto",
    preset: str = "quick",
    engine: str | None = None,
    ray_address: str | None = None,
    gpu_type: str | None = None,
    fit_memory: bool = False,
    seconds: float | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    told: Told | None = None,
) -> Report:
    """Score a set of kernels on a suite, as `warpsmith bench` does; goes on where `out` stopped.

    `given` is a folder, a KernelBench run, a file of JSON lines, or a campaign's name, folder or
    journal; without it the suite's references and baselines are timed. `only` keeps the tasks whose
    id, or a last part of it, matches a shell pattern. `engine` is `ray` or `local`, by default Ray
    where there are several GPUs. With `fit_memory` a task that has no room on the device is scored
    at a smaller batch, apart from the others' figures.
    """
    from agent.scoring import Told, bench_name, place, score
    from sandbox.doctor import resolve_device

    return score(
        given,
        suite,
        Path("bench", bench_name(given)) if out is None else Path(out),
        place(resolve_device(device), engine, ray_address, gpu_type),
        preset,
        only=only,
        fit_memory=fit_memory,
        seconds=seconds,
        interrupted=interrupted,
        told=told or Told(),
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


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: a WarpsmithError is one line on stderr and exit code 2, and so is a path
    that the system does not let us use, or a full disk.
    """
    from agent.commands.app import app

    # A dot or an arrow that a terminal's encoding lacks ends no campaign.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        app(arguments)
    except WarpsmithError as error:
        print(f"warpsmith: {error}", file=sys.stderr)
        sys.exit(UNUSABLE)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            remedy = "free space and run the same command again"
        elif error.filename is not None:
            remedy = "check the path and who may read and write it"
        else:
            raise
        # A write that fails tells no name; whoever writes a file catches that and says which.
        what = error.filename or "output"
        print(f"warpsmith: {what}: cannot be used ({error.strerror}); {remedy}", file=sys.stderr)
        sys.exit(UNUSABLE)


if __name__ == "__main__":
    main()
