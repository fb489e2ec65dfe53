"""Static triage: rejects only what can never be legitimate; everything else is for the run to
decide.
"""

from __future__ import annotations

import ast

from sandbox.types import Candidate, Language


def reject(candidate: Candidate) -> str:
    """Why the source cannot be a candidate, or an empty string. A syntax error is the build's to
    report.
    """
    if not candidate.source.strip():
        return "the source is empty; expected a Python file that defines class ModelNew"
    try:
        tree = ast.parse(candidate.source)
    except (SyntaxError, ValueError):
        return ""
    except (RecursionError, MemoryError):  # what the parser raises at its own stack limit
        return "the source is nested too deeply for Python's parser"
    if not defines(tree, "ModelNew"):
        first = candidate.source.strip().splitlines()[0][:200]
        return (
            f"no class ModelNew; expected the reference's Model rewritten under that name ({first})"
        )
    return ""


def defines(tree: ast.Module, name: str) -> bool:
    """Whether the module binds `name` at any level of its top-level statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) == name:
            return True
    return False


def language_of(source: str) -> Language:
    """The language a kernel file is written in, from what it imports and calls.

    Raises SyntaxError for what is no Python.
    """
    names, options = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.alias):
            names.add(node.name.partition(".")[0])
            names.add(node.name.rpartition(".")[2])
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            options.add(node.arg)
    if {"load_inline", "load"} & names and "cuda_sources" in options:
        return Language.CUDA_INLINE
    if "load_inline" in names:
        return Language.CPP
    if "cupy" in names:
        return Language.CUDA
    if "triton" in names:
        return Language.TRITON
    return Language.TORCH
