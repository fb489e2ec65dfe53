"""Every verb of the command line, in the order of `warpsmith --help`.

A command's name stands here; its options and its help are its function's signature and docstring.
It parses, makes one call, prints what came of it and sets the exit code, and imports what it needs
only when it is called: `warpsmith --help` loads neither torch nor Ray.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from agent.commands import campaign, judging, library, runs, tasks, training
from agent.commands.doctor import doctor

Verbs = Mapping[str, Callable[..., None]]
VERBS: Verbs = {
    "doctor": doctor,
    "prompt": campaign.prompt,
    "evaluate": judging.evaluate,
    "optimize": campaign.optimize,
    "bench": judging.bench,
    "compare": judging.compare,
    "report": runs.report,
    "replay": runs.replay,
    "show": runs.show,
    "audit": runs.audit,
    "export": library.export,
    "revalidate": library.revalidate,
    "extract": library.extract,
    "apply": library.apply,
}
TASKS: Verbs = {"list": tasks.list_tasks, "show": tasks.show_task, "validate": tasks.validate}
DATA: Verbs = {"tasks": training.make_tasks, "examples": training.make_examples}
TRAIN: Verbs = {
    "sft": training.train_sft,
    "self": training.train_self,
    "rl": training.train_rl,
    "judge": training.train_judge,
}


def _group(help: str, verbs: Verbs) -> typer.Typer:
    group = typer.Typer(
        help=help, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
    )
    for name, command in verbs.items():
        group.command(name)(command)
    return group


app = _group("Turns PyTorch references into proven, faster kernels.", VERBS)
app.add_typer(_group("Which problems there are.", TASKS), name="tasks")
app.add_typer(_group("Tasks and examples to train on.", DATA), name="data")
app.add_typer(_group("The stages of training, apart.", TRAIN), name="train")


@app.callback()
def _verbosity(verbose: Annotated[bool, typer.Option(help="Log what happens.")] = False) -> None:
    level = logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
