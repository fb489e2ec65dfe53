"""From what a user writes to Tasks. Nothing here executes a problem: files are parsed as text.

| spec | tasks |
|---|---|
| `builtin`, `builtin/softmax`, `softmax` | all built-in problems, or one |
| `kernelbench:PATH`, `kernelbench:PATH:level1/1-10` | a KernelBench checkout (selection.py) |
| `hf:ScalingIntelligence/KernelBench:level1` | a data set on the Hugging Face Hub |
| `synthetic:rows:COUNT@SEED`, `synthetic:any:COUNT` | compositions of operators (synthetic.py) |
| `path/to/problem.py`, `path/to/folder/` | files of your own, ids `file/NAME` |
| `CHECKOUT/KernelBench/level1` | its files as those of any folder, ids `file/level1/19_ReLU` |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelbench.builtin import builtin_names, builtin_task, nearest_builtin
from kernelbench.checkout import checkout_tasks, checkout_version
from kernelbench.hub import hub_tasks
from kernelbench.problem import DEVICE_KEYS, first_line, make_task, read_problem
from kernelbench.selection import Selection, parse_selection
from kernelbench.synthetic import SCHEME, synthetic_ids, synthetic_task, synthetic_tasks
from sandbox.errors import ConfigError, TaskError
from sandbox.types import Task

FORMS = (
    "builtin/NAME, kernelbench:PATH, hf:NAME, synthetic:rows:COUNT, or the path of a problem.py or "
    "of a folder"
)

LEVEL = re.compile(r"level[1-4]")
NUMBERED = re.compile(r"\d{1,6}_", re.ASCII)


@dataclass(frozen=True)
class TaskSummary:
    """One line of `warpsmith tasks list`."""

    id: str
    about: str
    """First docstring line; empty if the problem has none."""
    dtype: str
    shapes: tuple[str, ...]


def load_tasks(spec: str, device: str, dtype: str | None = None) -> list[Task]:
    """Tasks that `spec` names, in order, never none; `dtype` overrides the problems' own.

    Raises TaskError where the spec or a file cannot be used.
    """
    if device not in DEVICE_KEYS:
        raise ConfigError(f"device is {device!r}; expected 'cpu' or 'cuda'")
    scheme, _, rest = spec.partition(":")
    if scheme == "kernelbench":
        path, selection = _checkout_spec(rest)
        return checkout_tasks(path, selection, device, dtype)
    if scheme == "hf":
        dataset, _, chosen = rest.partition(":")
        return hub_tasks(dataset, parse_selection(chosen), device, dtype)
    if scheme == SCHEME:
        return synthetic_tasks(rest, device, dtype)
    composed = synthetic_task(spec, device, dtype)
    if composed is not None:
        return [composed]
    if spec == "builtin":
        return [builtin_task(name, device, dtype) for name in builtin_names()]
    if spec.removeprefix("builtin/") in builtin_names():
        return [builtin_task(spec.removeprefix("builtin/"), device, dtype)]
    return [_file_task(path, device, dtype) for path in _files(spec)]


def loaders(spec: str, device: str) -> dict[str, Callable[[], Task]]:
    """How each of the tasks that `spec` names is loaded, by id, in order: of thousands that are
    composed only those that are asked for are.

    Raises what `load_tasks` raises.
    """
    scheme, _, rest = spec.partition(":")
    if scheme == SCHEME:
        return {id: partial(load_task, id, device) for id in synthetic_ids(rest)}
    return {task.id: partial(_itself, task) for task in load_tasks(spec, device)}


def spec_of(spec: str, task_id: str) -> str:
    """What names this one of the tasks that `spec` names."""
    scheme, _, rest = spec.partition(":")
    if scheme == "kernelbench":
        root = _checkout_spec(rest)[0]
        return f"kernelbench:{root}:{task_id.removeprefix('kernelbench/')}"
    if scheme == "hf":
        return f"hf:{rest.partition(':')[0]}:{task_id.removeprefix('kernelbench/')}"
    if not task_id.startswith("file/"):
        return task_id
    name = f"{task_id.rpartition('/')[2]}.py"
    return str(Path(spec) / name) if Path(spec).expanduser().is_dir() else spec


def _itself(task: Task) -> Task:
    return task


def load_task(spec: str, device: str) -> Task:
    """The one task that `spec` names; raises ConfigError where it names several."""
    tasks = load_tasks(spec, device)
    if len(tasks) > 1:
        raise ConfigError(f"{spec} names {len(tasks)} tasks; expected one, such as {tasks[0].id}")
    return tasks[0]


def load_suite(specs: Iterable[str], device: str) -> list[Task]:
    """Tasks of all specs, each once, in the order of its first mention.

    Raises ConfigError where two specs call different tasks by one name, as two versions of a data
    set do.
    """
    found: dict[str, Task] = {}
    first: dict[str, str] = {}
    for spec in specs:
        for task in load_tasks(spec, device):
            known = found.setdefault(task.id, task)
            origin = first.setdefault(task.id, spec)
            if known.hash != task.hash:
                what = f"{task.id} differs between {origin} and {spec}"
                raise ConfigError(f"{what}; take one of them, or rename it")
    return list(found.values())


def suite_version(spec: str) -> str | None:
    """The commit of a KernelBench checkout or the revision of a data set, where the spec tells."""
    scheme, _, rest = spec.partition(":")
    if scheme == "kernelbench":
        return checkout_version(_checkout_spec(rest)[0])
    revision = rest.partition(":")[0].partition("@")[2]
    return revision or None if scheme == "hf" else None


def list_tasks(spec: str, device: str) -> list[TaskSummary]:
    return [summarise(task) for task in load_tasks(spec, device)]


def summarise(task: Task) -> TaskSummary:
    shapes = tuple(shape.name for shape in task.shapes)
    return TaskSummary(task.id, first_line(task.source), task.dtype, shapes)


def _checkout_spec(rest: str) -> tuple[Path, Selection]:
    """Path and selection; a path may hold colons, a selection does not."""
    if not rest:
        raise TaskError("kernelbench: needs a path; expected kernelbench:PATH or with :level1/1-10")
    path, colon, chosen = rest.rpartition(":")
    if not colon or Path(rest).expanduser().is_dir():
        return Path(rest).expanduser(), Selection()
    return Path(path).expanduser(), parse_selection(chosen)


def _files(spec: str) -> list[Path]:
    path = Path(spec).expanduser()
    if spec and path.is_dir():
        files = sorted(p for p in path.glob("*.py") if not p.name.startswith("_"))
        if not files:
            raise TaskError(
                f"folder {spec} holds no problem files; for levels use kernelbench:PATH"
            )
        return files
    if spec.endswith(".py") and path.is_file():
        return [path]
    if spec.endswith(".py"):
        raise TaskError(f"{spec}: no such file")
    near = nearest_builtin(spec)
    hint = f"did you mean {near!r}?" if near else f"expected {FORMS}"
    raise TaskError(f"unknown task {spec!r}; {hint}")


def _file_task(path: Path, device: str, dtype: str | None) -> Task:
    return make_task(_file_id(path), read_problem(path), device, dtype)


def _file_id(path: Path) -> str:
    """With its level where it lies as the files of a KernelBench checkout do, since an evaluation
    suite's tasks are known by their ids (rl/config.py). A copy in another folder is not seen.
    """
    level, name = path.parent.resolve().name, path.stem
    of_a_level = LEVEL.fullmatch(level) and NUMBERED.match(name)
    return f"file/{level}/{name}" if of_a_level else f"file/{name}"
