"""The suite that Warpsmith ships: kernelbench/problems/*.py, as task ids `builtin/NAME`."""

from __future__ import annotations

import difflib
from importlib import resources

from kernelbench.problem import make_task, parse_problem
from sandbox.types import Task

PACKAGE = "kernelbench.problems"


def builtin_names() -> list[str]:
    """Sorted names of the built-in problems, such as `softmax`."""
    files = (entry.name for entry in resources.files(PACKAGE).iterdir())
    return sorted(f.removesuffix(".py") for f in files if f.endswith(".py") and f[0] != "_")


def builtin_task(name: str, device: str, dtype: str | None) -> Task:
    source = resources.files(PACKAGE).joinpath(f"{name}.py").read_text(encoding="utf-8")
    return make_task(f"builtin/{name}", parse_problem(source, f"builtin/{name}"), device, dtype)


def nearest_builtin(name: str) -> str | None:
    """The id that a misspelt name most likely meant, if one is close."""
    known = builtin_names()
    close = difflib.get_close_matches(name.rpartition("/")[2], known, n=1)
    return f"builtin/{close[0]}" if close else None
