"""The suite that Warpsmith ships: kernelbench/problems/*.py, as task ids `builtin/NAME`."""

from __future__ import annotations

import difflib
from importlib import resources

from kernelbench.problem import make_task, parse_problem
from sandbox.types import Task

PACKAGE = "kernelbench.problems"
SUITE = "builtin"


def builtin_names() -> list[str]:
    """Sorted names of the built-in problems, such as `softmax`."""
    files = (entry.name for entry in resources.files(PACKAGE).iterdir())
    return sorted(f.removesuffix(".py") for f in files if f.endswith(".py") and f[0] != "_")


def builtin_task(name: str, device: str, dtype: str | None) -> Task:
    source = resources.files(PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return make_task(f"builtin/{name}", parse_problem(source, f"builtin/{name}"), device, dtype)


def nearest_builtin(name: str) -> str | None:
    """The id that a misspelt name most likely meant, or the suite itself, if one is close."""
    close = difflib.get_close_matches(name.rpartition("/")[2], [SUITE, *builtin_names()], n=1)
    if not close:
        return None
    return SUITE if close[0] == SUITE else f"{SUITE}/{close[0]}"
