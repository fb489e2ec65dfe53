"""A campaign from its config: tasks, journal, proposers and engine are opened, the loop runs, and
what it finds is shown as it comes.

Not here: the loop's decisions (agent/loop/campaign.py), and how a local policy is made, which only
`rl` knows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from rich.console import Console

from agent.config import OptimizeConfig
from agent.engines.engine import LaneEngine, LocalEngine
from agent.engines.idle import Deferred
from agent.journals.journal import COMMAND
from agent.journals.outcome import CampaignResult
from agent.journals.spending import spending
from agent.learner import OpenPolicy
from agent.loop.campaign import run_campaign
from agent.models.opening import BatchFiles, check_models
from agent.proposers import open_proposers
from agent.runs import interruptible, open_run
from agent.views.progress import CampaignView, Header, show_result
from kernelbench.suite import load_suite
from sandbox.building.build import build
from sandbox.doctor import describe, gpu_count
from sandbox.errors import ConfigError
from sandbox.evaluator import LocalEvaluator
from sandbox.many import ahead
from sandbox.words import number_of, visible

STOPPING = "stopping after what is being measured; Ctrl-C to abandon it"


def launch(
    config: OptimizeConfig,
    name: str,
    open_policy: OpenPolicy | None = None,
    *,
    export_requests: Path | None = None,
    import_replies: Sequence[Path] = (),
) -> CampaignResult:
    """Run or resume the campaign under runs/NAME, on stdout; the config's device is resolved.

    With a file to export requests to, or files to import replies from, nothing is sent to a model's
    endpoint. Ctrl-C ends it cleanly, a second one at once.
    """
    if config.own_gpu and config.ray_address is None:
        refuse_none_left(config.device, 1)
    tasks, console, files = load_suite(config.tasks, config.device), Console(), None

    def say(line: str) -> None:
        console.print(visible(line), soft_wrap=True, highlight=False, markup=False)

    if export_requests is not None or import_replies:
        files = BatchFiles(export_requests, import_replies, say)
    check_models(config, files)
    with open_run(name, config) as journal:
        journal.record_event(COMMAND, detail=json.dumps(sys.argv))
        policy = None if open_policy is None else open_policy(journal.folder)
        local = None if policy is None else policy.model
        kept = policy.gpus if policy is not None and config.own_gpu else 0
        with (
            open_proposers(
                journal, config, describe(config.device), files, local, say
            ) as proposers,
            closing(Deferred(config.engine, partial(open_engine, config, kept))) as engine,
        ):

            def header() -> Header:
                lanes = None if engine.started is None else engine.started.lanes
                return Header(name, engine.name, lanes, proposers[0].name, config.device)

            view = CampaignView(console, header, [task.id for task in tasks], config.max_seconds)
            with interruptible(partial(view.note, STOPPING)) as interrupted, view:
                result = run_campaign(
                    tasks,
                    proposers,
                    engine,
                    journal,
                    config.campaign(),
                    on_event=view.update,
                    interrupted=interrupted,
                    on_pulse=view.beat,
                    on_lesson=lambda lesson: view.note(str(lesson)),
                    learner=None if policy is None else policy.learner,
                    apart=policy is not None and policy.apart and not config.own_gpu,
                    at_endpoints=bool(config.asked),
                )
            title = str(header())
        cost = spending(journal)
    show_result(console, result, title)
    console.print(str(cost), highlight=False)
    return result


def open_engine(config: OptimizeConfig, kept: int = 0) -> LaneEngine:
    """The config's engine, started, on all GPUs of this machine but the first so many, which are
    `kept` for a policy. Raises ConfigError where Ray is wanted and not installed, no GPU is left,
    or more lanes are asked for than there are devices.
    """
    if kept and config.ray_address is None:
        refuse_none_left(config.device, kept)
    make_evaluator = partial(LocalEvaluator, config.device)
    if config.engine == "local":
        most = gpu_count() if config.device == "cuda" else 1
        if config.lanes is not None and config.lanes > most:
            there = number_of(most, "GPU") if config.device == "cuda" else "a CPU, one lane"
            raise ConfigError(
                f"lanes is {config.lanes}, and this machine has {there}: two lanes on one device "
                "would time each other; leave it out"
            )
        lanes = config.lanes or most
        return LocalEngine(make_evaluator, build, lanes=lanes, depth=ahead(config.device))
    try:
        from agent.engines.ray_engine import RayEngine
    except ImportError as error:
        raise ConfigError(f"{error}: install ray, or use --engine local") from error
    return RayEngine(
        make_evaluator,
        build,
        device=config.device,
        address=config.ray_address,
        gpu_type=config.gpu_type,
        kept_gpus=kept,
        depth=None,
    )


def refuse_none_left(device: str, kept: int) -> None:
    """Raises ConfigError where a policy's own GPUs leave lanes nothing to measure on."""
    if device != "cuda":
        raise ConfigError(f"own_gpu is for a GPU, and the device is {device}; leave it out")
    if gpu_count() <= kept:
        raise ConfigError(
            f"own_gpu keeps {kept} of {gpu_count()} GPUs for the policy, and lanes need one; "
            "leave it out to share one by turns"
        )
