"""One problem file in KernelBench's contract -> Task. The text is parsed, never executed.

Beside `class Model`, `get_inputs()` and `get_init_inputs()` our files may define three literal
constants: `SHAPES` (sizes, one list or one for each device), `DTYPE` (one name or one for each
device) and `EXACT_FLOAT32` (TF32 refused). Upstream's files have none of them: `given_task`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import TaskError
from sandbox.types import Shape, Task

DTYPES = ("float32", "float16", "bfloat16")
"""What a task can be in."""
CONTRACT = {
    "Model": "class Model(nn.Module)",
    "get_inputs": "def get_inputs()",
    "get_init_inputs": "def get_init_inputs()",
}
DEVICE_KEYS = {"cpu": "cpu", "cuda": "gpu"}
"""How SHAPES and DTYPE name a task's device."""


@dataclass(frozen=True)
class Problem:
    """A parsed file that honours the contract."""

    origin: str
    """Where the text came from, for error messages."""
    source: str
    tree: ast.Module

    def constant(self, name: str, device: str) -> object:
        """Value of a literal module constant, the device's own where it is a dict; None if absent.

        Raises TaskError where the value is not a literal or lacks the device.
        """
        node = bindings(self.tree).get(name)
        if node is None:
            return None
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError) as error:
            raise TaskError(f"{self.origin}: {name} must be a literal, without calls") from error
        if not isinstance(value, dict):
            return value
        key = DEVICE_KEYS[device]
        if key not in value:
            raise TaskError(f"{self.origin}: {name} has no entry {key!r}; add one for this device")
        return value[key]


def parse_problem(source: str, origin: str) -> Problem:
    """Raises TaskError where the text is not Python or misses a part of the contract."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        line = getattr(error, "lineno", None)
        raise TaskError(f"{origin}: not Python: {error.args[0]} (line {line or '?'})") from error
    bound = bindings(tree)
    missing = [form for name, form in CONTRACT.items() if name not in bound]
    if missing:
        expected = ", ".join(CONTRACT.values())
        raise TaskError(f"{origin}: no {' and no '.join(missing)}; a problem defines {expected}")
    return Problem(origin, source, tree)


def read_problem(path: Path) -> Problem:
    try:
        return parse_problem(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 text; expected a Python file") from error


def make_task(task_id: str, problem: Problem, device: str, dtype: str | None) -> Task:
    """The task with the sizes and the type that the file asks for; `dtype` overrides the latter."""
    return Task(
        id=task_id,
        source=problem.source,
        device=device,
        dtype=_dtype(problem, dtype or problem.constant("DTYPE", device) or "float32"),
        shapes=tuple(_shapes(problem, device)) or (Shape("given"),),
        exact_float32=problem.constant("EXACT_FLOAT32", device) is True,
    )


def given_task(task_id: str, problem: Problem, device: str, dtype: str | None) -> Task:
    """The task as upstream defines it: its own sizes only, float32 unless told otherwise."""
    return Task(task_id, problem.source, device, _dtype(problem, dtype or "float32"))


def first_line(source: str) -> str:
    """First docstring line of the module, else of class Model; empty if neither has one."""
    tree = ast.parse(source)
    models = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"]
    docs = [ast.get_docstring(tree), *map(ast.get_docstring, models)]
    return next((doc.strip().splitlines()[0] for doc in docs if doc and doc.strip()), "")


def bindings(tree: ast.Module) -> dict[str, ast.AST]:
    """Module-level names and what each is bound to, the last binding last; not inside if or try."""
    return {name: node for statement in tree.body for name, node in _bound(statement)}


def _bound(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, statement
        case ast.Assign(targets=targets, value=value):
            yield from ((t.id, value) for t in targets if isinstance(t, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((a.asname or a.name, statement) for a in aliases)


def _dtype(problem: Problem, name: object) -> str:
    if name in DTYPES:
        return str(name)
    expected = ", ".join(DTYPES)
    raise TaskError(f"{problem.origin}: dtype is {name!r}; expected one of {expected}")


def _shapes(problem: Problem, device: str) -> Iterator[Shape]:
    entries = problem.constant("SHAPES", device)
    if entries is None:
        return
    if not isinstance(entries, list | tuple) or not entries:
        raise TaskError(
            f'{problem.origin}: SHAPES lists dicts such as {{"name": "small", "N": 64}}'
        )
    known = bindings(problem.tree)
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise TaskError(f"{problem.origin}: SHAPES entry {entry!r} needs a 'name', a string")
        constants = tuple((k, v) for k, v in entry.items() if k != "name")
        for name, value in constants:
            if name not in known:
                raise TaskError(f"{problem.origin}: SHAPES sets {name!r}, no module constant")
            if not isinstance(value, int | float):
                raise TaskError(f"{problem.origin}: SHAPES sets {name} to {value!r}, no number")
        yield Shape(entry["name"], constants)
