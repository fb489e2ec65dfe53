"""A KernelBench data set on the Hugging Face Hub -> Tasks; the one owner of `datasets`, and who
knows whether the Hub can be reached.

Columns `code`, `level`, `name` (without `.py`) and `problem_id`; splits `level_1`, `level_2`, ...
`NAME@REVISION` pins a branch, tag or commit; without it the newest version is loaded, and only
`Task.hash` tells which text that was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kernelbench.problem import given_task, parse_problem
from kernelbench.selection import Entry, Selection
from sandbox.errors import TaskError, install
from sandbox.types import Task

REACH_S = 5.0


@dataclass(frozen=True)
class Row(Entry):
    source: str


def hub_tasks(dataset: str, selection: Selection, device: str, dtype: str | None) -> list[Task]:
    """Downloads the selected levels, or reads them from the cache of `datasets`."""
    return tasks_from_rows(_download(dataset, selection), dataset, selection, device, dtype)


def tasks_from_rows(
    records: Iterable[Mapping[str, object]],
    origin: str,
    selection: Selection,
    device: str,
    dtype: str | None,
) -> list[Task]:
    """The selected records as tasks; TaskError where a column is missing or of another type."""
    chosen = selection.pick([_row(record, origin) for record in records], origin)
    parsed = ((row, parse_problem(row.source, f"{origin}:{row.name}")) for row in chosen)
    return [given_task(row.task_id, problem, device, dtype) for row, problem in parsed]


def _row(record: Mapping[str, object], origin: str) -> Row:
    match record:
        case {"code": str(code), "level": int(level), "name": str(name), "problem_id": int(number)}:
            return Row(level, number, name.removesuffix(".py"), code)
    raise TaskError(
        f"{origin}: columns are {sorted(record)}; expected code, level, name and problem_id"
    )


def _download(dataset: str, selection: Selection) -> Iterator[Mapping[str, object]]:
    try:
        from datasets import config, load_dataset  # heavy, and an optional dependency
    except ImportError as error:
        raise TaskError(f"hf:{dataset} needs the 'datasets' package: {install('train')}") from error
    name, _, revision = dataset.partition("@")
    config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE or not reachable()
    for level in selection.levels:
        try:
            yield from load_dataset(name, split=f"level_{level}", revision=revision or None)
        except (OSError, ValueError) as error:  # not found, no network, no such split
            here = config.HF_HUB_OFFLINE
            why = "it is not in the cache, and the Hub cannot be reached" if here else error
            raise TaskError(f"hf:{dataset}: level_{level} cannot be loaded: {why}") from error


def reachable() -> bool:
    """Whether the Hub answers at all: what loads from it would ask six times, for minutes."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)
    except Exception:  # noqa: BLE001  whichever client that version has: it did not answer
        return False
    return True
