"""Which language a kernel file is written in, told from its imports and calls; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import ConfigError, unread
from sandbox.types import Candidate, Language


def language_of(source: str, origin: str, name: str | None) -> Language:
    """The named language, or the one told from the source; raises ConfigError."""
    if name is None:
        return detect_language(source, origin)
    if name not in set(Language):
        raise ConfigError(f"language is {name!r}; expected one of {', '.join(Language)}")
    return Language(name)


def detect_language(source: str, origin: str = "kernel") -> Language:
    """Raises ConfigError where the text is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ConfigError(f"{origin}: line {error.lineno}: not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # half a character; the stack's end
        raise ConfigError(f"{origin}: Python's parser cannot read it: {error!r:.200}") from error
    inline = [call for call in _calls(tree) if _builds(call.func, tree)]
    if inline:
        return Language.CUDA_INLINE if any(map(_has_cuda, inline)) else Language.CPP
    packages = set(_packages(tree))
    if "cupy" in packages:
        return Language.CUDA
    return Language.TRITON if "triton" in packages else Language.TORCH


def builds_late(source: str) -> bool:
    """Whether an extension may not be built by an import without a GPU, but when something is
    constructed or called, or where there is one: a call of `load_inline` stands in a function, or
    under a condition.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    later = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda | ast.If))
    return any(_builds(call.func, tree) for node in later for call in _calls(node))


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _builds(function: ast.expr, tree: ast.AST) -> bool:
    """A call of `load_inline`, or of cpp_extension's `load`; not of Triton's `tl.load`."""
    if _name(function) != "load":
        return _name(function) == "load_inline"
    if isinstance(function, ast.Attribute):
        return isinstance(function.value, ast.Name | ast.Attribute) and (
            ast.unparse(function.value).rpartition(".")[2] == "cpp_extension"
        )
    imports = (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module)
    return any(
        n.module is not None
        and n.module.endswith("cpp_extension")
        and any(alias.name == "load" for alias in n.names)
        for n in imports
    )


def _has_cuda(call: ast.Call) -> bool:
    """`load_inline(name, cpp_sources, cuda_sources)`, the last by its place or its name."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "cuda_sources"]
    if _name(call.func) == "load_inline":
        given += call.args[2:3]
    return any(ast.unparse(value) not in ("None", "[]", "()", "''") for value in given)


def _packages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def no_gpu(language: Language) -> str:
    """Why a kernel in a language that needs a GPU is not judged on the CPU."""
    return f"{language} kernels need a GPU, and this is the CPU: judge it on a machine with a GPU"


def read_candidate(path: Path, task_id: str, language: str | None) -> Candidate:
    """A kernel file, in the named language or the one told from it; raises ConfigError."""
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {unread(error)}") from error
    if not source.strip():
        raise ConfigError(f"{path}: is empty; expected a Python file that defines ModelNew")
    return Candidate(task_id, language_of(source, str(path), language), source)
