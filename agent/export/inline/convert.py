"""`cuda` candidates (NVRTC through cupy) as `cuda_inline` ones, which KernelBench can run.

The Python text and the device source stay as they are; the import of cupy becomes the text of
`agent.export.inline.host`. What comes out is another candidate: it is judged and timed as one.
Nothing is executed here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import resources

from sandbox.errors import WarpsmithError
from sandbox.types import Candidate, Language

SUPPORTED = frozenset({"RawModule", "RawKernel", "cuda", "cuda.ExternalStream"})
BACKENDS = "cupy_backends"
BOUND = ("types", "re", "hashlib", "contextvars", "Any", "load_inline")
"""Modules that the host text imports: a candidate's own use of the names is the same module."""


class NotConvertible(WarpsmithError):
    """The source uses what `load_inline` cannot stand for; the message says what."""


def converted(candidate: Candidate) -> Candidate:
    """Raises NotConvertible."""
    text = convert(candidate.source)
    return Candidate(candidate.task_id, Language.CUDA_INLINE, text)


def convert(source: str) -> str:
    """The text with cupy replaced; raises NotConvertible."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise NotConvertible(f"line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotConvertible(f"Python's parser cannot read it: {error!r:.200}") from error
    imports = [n for n in tree.body if _of_cupy(n)]
    if not imports:
        raise NotConvertible("it does not import cupy at its top level")
    if sum(map(_of_cupy, ast.walk(tree))) > len(imports):
        raise NotConvertible("it imports cupy inside a function or a branch")
    if any(_of_cupy(n, BACKENDS) for n in ast.walk(tree)):
        raise NotConvertible(f"it launches through {BACKENDS}")
    used = set(uses(tree))
    foreign = sorted(used - SUPPORTED)
    if foreign:
        raise NotConvertible(f"it uses cupy.{foreign[0]}")
    _refuse_collisions(tree)
    return _replaced(_without_pass(source, tree), imports)


def _without_pass(source: str, tree: ast.Module) -> str:
    """`...` for `pass`, which KernelBench's static checker refuses wherever it stands."""
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    for node in ast.walk(tree):
        if isinstance(node, ast.Pass):
            line, column = lines[node.lineno - 1], node.col_offset
            lines[node.lineno - 1] = line[:column] + b"..." + line[column + len("pass") :]
    return b"".join(lines).decode()


def uses(tree: ast.AST, package: str = "cupy") -> Iterator[str]:
    """`RawModule`, `cuda.ExternalStream`: what the text takes from the package, by dotted name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == package:
                    inner = alias.name.partition(".")[2] if alias.asname else ""
                    names[alias.asname or package] = inner
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
            inner = (node.module or "").partition(".")[2]
            for alias in node.names:
                path = f"{inner}.{alias.name}".strip(".")
                names[alias.asname or alias.name] = path
                yield path
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inside:
            path, owner = node.attr, node.value
            while isinstance(owner, ast.Attribute):
                inside.add(id(owner))
                path, owner = f"{owner.attr}.{path}", owner.value
            if isinstance(owner, ast.Name) and owner.id in names:
                inside.add(id(owner))
                yield f"{names[owner.id]}.{path}".strip(".")
        elif isinstance(node, ast.Name) and id(node) not in inside and names.get(node.id) == "":
            yield f"<the module as {node.id}>"


def _of_cupy(node: ast.AST, package: str = "cupy") -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == package for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package


def _refuse_collisions(tree: ast.Module) -> None:
    """Every name of the host text that the candidate binds too would replace it."""
    ours = set(_bound(ast.parse(host_text())))
    theirs = set(_bound(tree)) - {"torch", *BOUND}
    both = sorted(ours & theirs)
    if both:
        raise NotConvertible(f"it binds {both[0]}, a name that the converted file needs")


def _bound(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        elif isinstance(node, ast.Import | ast.ImportFrom) and not _of_cupy(node):
            yield from (a.asname or a.name.partition(".")[0] for a in node.names)


def _replaced(source: str, imports: list[ast.stmt]) -> str:
    # As Python's parser counts them: a form feed or U+2028 ends none.
    lines = [line.decode() for line in source.encode().splitlines(keepends=True)]
    first = imports[0]
    for node in reversed(imports):
        lines[node.lineno - 1 : node.end_lineno] = [f"{line}\n" for line in _instead(node)]
    future = [i for i, line in enumerate(lines) if line.startswith("from __future__")]
    place = max(future[-1] + 1 if future else 0, first.lineno - 1)
    return "".join([*lines[:place], host_text(), "\n\n", *lines[place:]])


def _instead(node: ast.stmt) -> Iterator[str]:
    """Statements that bind what the import bound."""
    if isinstance(node, ast.Import):
        others = [a for a in node.names if a.name.partition(".")[0] != "cupy"]
        if others:
            yield ast.unparse(ast.Import(others))
        for alias in node.names:
            if alias not in others and alias.asname:
                yield f"{alias.asname} = {alias.name}"
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if (alias.asname, node.module) != (None, "cupy") or alias.name == "cuda":
                yield f"{alias.asname or alias.name} = {node.module}.{alias.name}"


def host_text() -> str:
    """`host.py` without its docstring."""
    text = (resources.files("agent.export.inline") / "host.py").read_text()
    body = ast.parse(text).body
    return "".join(text.splitlines(keepends=True)[body[1].lineno - 1 :])
