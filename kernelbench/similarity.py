"""How alike two references are: normalised syntax trees of what their models compute.

Names of variables, constants, sizes, annotations and docstrings do not count; which operators are
called, in which order and nesting, does. CUDA Agent (arXiv 2602.24286) keeps synthetic training
tasks at most 0.9 alike to those they are evaluated on; the same bound decontaminates here. It does
not see through operators that are written differently and compute the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

TOO_ALIKE = 0.9
MODULES = {"torch", "nn", "F", "functional"}
"""By whose names operators are called that are methods of tensors as well."""
Shape = tuple[str, ...]
"""Of a syntax tree: its nodes in preorder, called operators by their names."""


def shape_of(source: str, *, bare: bool = False) -> Shape:
    """Of a reference's `class Model`, its forward at least; of the whole text without one.

    `bare`: without what a module says whatever it computes (that its base is made too, by which
    name an operator is called), which is most of a short one; tasks are told apart with it, so that
    they stay on the side of a split where they were. Raises SyntaxError where the text is not
    Python.
    """
    tree = ast.parse(source)
    body = (_Bare().visit(tree) if bare else tree).body
    model = next((n for n in body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if model is None:
        return tuple(word for statement in body for word in _words(statement))
    methods = [n for n in model.body if isinstance(n, ast.FunctionDef)]
    return tuple(word for m in methods for n in m.body for word in _words(n) if not _docs(n))


@dataclass
class Known:
    """References that others are compared with."""

    shapes: list[tuple[str, Shape]] = field(default_factory=list)
    met: set[Shape] = field(default_factory=set)
    """Of references that were found too like one of these."""

    @classmethod
    def of(cls, named: Sequence[tuple[str, str]]) -> Known:
        """From pairs of a name and a source."""
        return cls([(name, shape_of(source, bare=True)) for name, source in named])

    def too_alike(self, source: str) -> str | None:
        """The name of one that is more than `TOO_ALIKE`, if there is one: twice what the trees
        share over their lengths, 1 for equal ones, 0 for nothing in common.
        """
        shape = shape_of(source, bare=True)
        for name, other in self.shapes:
            matcher = SequenceMatcher(None, shape, other, autojunk=False)
            # Upper bounds first: nearly all pairs end there.
            quick = min(matcher.real_quick_ratio(), matcher.quick_ratio())
            if quick > TOO_ALIKE and matcher.ratio() > TOO_ALIKE:
                self.met.add(shape)
                return name
        return None


class _Bare(ast.NodeTransformer):
    """Leaves out `super().__init__()` and the modules that operators are called by."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        match node.value:
            case ast.Call(ast.Attribute(ast.Call(ast.Name("super")), "__init__")):
                return None
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in MODULES:
            return ast.copy_location(ast.Name(node.attr, node.ctx), node)
        return node


def _docs(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _words(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        yield f"call {_called(node.func)}"
        for argument in (*node.args, *(k.value for k in node.keywords)):
            yield from _words(argument)
        if isinstance(node.func, ast.Attribute):
            yield from _words(node.func.value)
        return
    if isinstance(node, ast.Name | ast.Constant | ast.arg):
        yield type(node).__name__
        return
    if not isinstance(node, ast.expr_context):
        yield type(node).__name__
        for child in ast.iter_child_nodes(node):
            yield from _words(child)


def _called(function: ast.expr) -> str:
    """`torch.relu`, `F.relu` and `x.relu` are one operator."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else type(function).__name__
