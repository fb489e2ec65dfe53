"""Which candidates are the same program: by normalised source, and by machine code where known.

Comments, blank space, docstrings and the layout of Python do not count, nor comments and blanks of
the C, C++ or CUDA in a string of several lines. Names do: two programs that differ in a name only
are two. Unsure means different: a new program that passes for a known one would never be measured.
Machine code is that of a candidate's own process (sandbox/building/machine_code.py: a `machine
code` line among the runtime facts), with the Python around it, which launches it; what is not
compiled is told by its source alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from agent.types import Attempt
from sandbox.evidence import MACHINE_CODE, Layer
from sandbox.types import Candidate, digest

COMPILED = re.compile(r'__global__|#include|::Tensor|extern "C"')
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<endless>/\*.*)"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<end>\n)|(?P<word>\w[\w.]*)|(?P<marks>(?:(?!//|/\*)[^\w\s"'])+)|(?P<rest>\S)""",
    re.DOTALL,
)
"""A comment without an end is one token with all that follows: no other is looked for in there."""


def normal_form(candidate: Candidate) -> str:
    """A digest that equal programs share; where it is no Python, of the text with blanks joined."""
    return _form(candidate, _Normal())


def machine_code(attempt: Attempt) -> str | None:
    """A digest that programs share which are compiled to the same and launch it alike; None where
    nothing is known of that.
    """
    facts = (f for e in attempt.evaluation.evidence if e.layer is Layer.RUNTIME for f in e.facts)
    code = next((fact for fact in facts if fact.startswith(MACHINE_CODE)), None)
    return None if code is None else digest([code, _form(attempt.proposal.candidate, _Host())])


def _form(candidate: Candidate, normal: _Normal) -> str:
    try:
        tree = ast.parse(candidate.source)
        text = ast.dump(normal.visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        text = " ".join(candidate.source.split())
    return digest([candidate.language.value, text])


def distinct(attempts: Iterable[Attempt]) -> list[Attempt]:
    """The first of every program."""
    kept, seen = list[Attempt](), set[str]()
    for attempt in attempts:
        own = {normal_form(attempt.proposal.candidate)}
        if (code := machine_code(attempt)) is not None:
            own.add(code)
        if not own & seen:
            kept.append(attempt)
        seen |= own
    return kept


class _Normal(ast.NodeTransformer):
    """Drops docstrings, and normalises the code in strings of several lines."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and "\n" in node.value:
            return ast.Constant(_tokens(node.value))
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)


class _Host(_Normal):
    """Drops what is compiled: strings of several lines that hold C++ or CUDA, and what functions of
    Triton's hold.
    """

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        code = isinstance(node.value, str) and "\n" in node.value and COMPILED.search(node.value)
        return ast.Constant("") if code else super().visit_Constant(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if any(_words(decorator) >= {"triton", "jit"} for decorator in node.decorator_list):
            node.args, node.body = _NOTHING, [ast.Pass()]
        return self.generic_visit(node)


_NOTHING = ast.arguments([], [], None, [], [], None, [])


def _words(node: ast.AST) -> set[str]:
    """Names and attributes in an expression."""
    found = list(ast.walk(node))
    names = {part.id for part in found if isinstance(part, ast.Name)}
    return names | {part.attr for part in found if isinstance(part, ast.Attribute)}


def _tokens(code: str) -> str:
    """C-like code as its tokens; a preprocessor's line keeps its end."""
    kept: list[str] = []
    directive = fresh = False
    for found in TOKEN.finditer("\n" + code + "\n"):
        if found.lastgroup == "comment":
            continue
        if found.lastgroup == "end":
            if directive:
                kept.append("\n")
            directive, fresh = False, True
            continue
        directive = directive or (fresh and found.group().startswith("#"))
        fresh = False
        kept.append(found.group())
    return " ".join(kept)
