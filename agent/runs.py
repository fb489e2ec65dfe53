"""A run's folder: runs/NAME with its journal, its lock and its resolved config.

runs/NAME/journal.sqlite   everything that happened (agent/journals/journal.py)
runs/NAME/config.yaml      the resolved config it was first started with
runs/NAME/lock             held by the process that works on it
runs/NAME/ledger.jsonl     what its models cost (agent/models/ledger.py)
"""

from __future__ import annotations

import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from agent.config import LOCAL, MAY_CHANGE, OptimizeConfig, to_yaml, validate
from agent.journals.journal import FILE, Journal
from agent.journals.storage import RunLock
from agent.keys import nearest
from agent.models.ledger import LEDGER_FILE
from sandbox.cleanup import on_failure
from sandbox.errors import ConfigError
from sandbox.records import to_record

RUNS = Path("runs")
CONFIG = "config.yaml"
SHOWN = 8
"""Runs that are named where another was meant."""
SHOWN_CHARACTERS = 120
"""Of a setting that differs: a list of tasks may be long."""


@contextmanager
def open_run(name: str, config: OptimizeConfig, runs: Path = RUNS) -> Iterator[Journal]:
    """The journal of a new or resumed run, as its only writer.

    Raises ConfigError where the name, the folder or a changed config forbids it. Where the block
    raises before anything was evaluated or asked, a new run leaves no folder.
    """
    folder = runs / check_name(name)
    try:
        new = _made(folder)
        lock = RunLock(folder)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    try:
        with on_failure(partial(_discard_blank, folder, new)), _opened(folder, lock) as journal:
            _refuse_change(folder, config, journal.config())
            journal.record_config(config)
            _save(folder / CONFIG, to_yaml(config))
            yield journal
    finally:
        lock.release()


def check_name(name: str) -> str:
    """The name of a run itself; raises ConfigError where no folder may be called so."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigError(f"run name {name!r}: expected letters, digits, '.', '_' and '-'")
    return name


def new_name() -> str:
    """Of a run that was given none: when it began."""
    return time.strftime("%Y%m%d-%H%M%S")


def find_run(name: str, runs: Path = RUNS) -> Path:
    """Folder of a run by its name or path; raises ConfigError with the nearest name."""
    for folder in (runs / name, Path(name)):
        if (folder / FILE).is_file():
            return folder
    known = run_names(runs)
    meant = nearest(name, known)
    if meant:
        hint = f"did you mean {meant!r}?"
    else:
        others = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        hint = f"runs: {', '.join(known[-SHOWN:]) or 'none'}{others}"
    for folder in (runs / name, Path(name)):
        if name and folder.exists():
            raise ConfigError(f"{folder}: not a run (no {FILE} in it); {hint}")
    # In another folder than the runs' there are none.
    where = runs if known else runs.resolve()
    raise ConfigError(f"{name}: no such run under {where}; {hint}")


def run_names(runs: Path = RUNS) -> list[str]:
    return sorted(p.parent.name for p in runs.glob(f"*/{FILE}"))


def tried_in(name: str, runs: Path = RUNS) -> int:
    """Candidates that a run has evaluated already; 0 for a new one."""
    if not (runs / name / FILE).is_file():
        return 0
    with Journal(runs / name, read_only=True) as journal:
        return sum(len(journal.attempts(task.id)) for task in journal.tasks())


@contextmanager
def interruptible(on_first: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Whether the user has asked to stop; the second Ctrl-C is a KeyboardInterrupt.

    SIGTERM counts as the first. Outside the main thread, which alone gets signals, it is never.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked:
            asked = True
            on_first()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _made(folder: Path) -> bool:
    """Whether it was not there before; then it is this call's to remove."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _opened(folder: Path, lock: RunLock) -> Journal:
    try:
        lock.sign()
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return Journal(folder)


def _discard_blank(folder: Path, new: bool) -> None:
    """Of a run that this process has locked; only what it made itself."""
    ledger = folder / LEDGER_FILE
    asked = ledger.is_file() and len(ledger.read_bytes().splitlines()) > 1  # The first: its schema.
    if not new or asked:
        return
    with suppress(ConfigError):  # Of a journal that could not be made.
        if tried_in(folder.name, folder.parent):
            return
    shutil.rmtree(folder, ignore_errors=True)


def _refuse_change(folder: Path, config: OptimizeConfig, before: dict[str, object] | None) -> None:
    now = to_record(config)
    if before:  # what it knew nothing of is at its default
        before = to_record(validate(OptimizeConfig, before, str(folder)))
    for key, value in (before or {}).items():
        if key not in MAY_CHANGE and _typed(now.get(key)) != _typed(value):
            # Of `train` the option --config is another file.
            remedy = f"warpsmith optimize --config {folder / CONFIG} and no other"
            raise ConfigError(
                f"run {folder.name!r} was started with other settings "
                f"({_change(key, value, now.get(key))}); give another --name, or go on with "
                f"{remedy}"
            )


def _typed(value: object) -> object:
    """A local model's folder by itself, however it is typed."""
    if isinstance(value, str) and value.startswith(LOCAL):
        return f"{LOCAL}{Path(value.removeprefix(LOCAL)).resolve()}"
    return value


def _change(key: str, was: object, now: object) -> str:
    """In words, of the innermost key that differs."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        inner = next((k for k in {**was, **now} if was.get(k) != now.get(k)), None)
        if inner is not None:
            return _change(f"{key}.{inner}", was.get(inner), now.get(inner))
    return f"{key} was {_short(was)}, now {_short(now)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _save(path: Path, text: str) -> None:
    if not path.exists():
        try:
            path.write_text(text)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
