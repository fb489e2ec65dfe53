"""Static triage: rejects only what can never be legitimate; everything else is for the run to
decide.
"""

from __future__ import annotations

import ast

from sandbox.types import Candidate


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
