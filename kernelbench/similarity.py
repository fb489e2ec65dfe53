"""How alike two references are: normalised syntax trees of what their models compute.

Names of variables, of a model's parts and of what the text defines itself, constants, sizes,
annotations and docstrings do not count; which operators are called, in which order and nesting,
does, in helpers of the text too. CUDA Agent (arXiv 2602.24286) keeps synthetic training
tasks at most 0.9 alike to those they are evaluated on; the same bound decontaminates here. It does
not see through operators that are written differently and compute the same.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

TOO_ALIKE = 0.9
MODULES = {"torch", "nn", "F", "functional"}
"""By whose names operators are called that are methods of tensors as well."""
MODEL, INPUTS = "Model", ("get_inputs", "get_init_inputs")
OWN = "own"
"""Whatever the text defines itself, when it is called."""
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
    if bare:
        _Bare().visit(tree)
    parts = _parts(tree)
    if not parts:
        return tuple(word for statement in tree.body for word in _words(statement, {}))
    names = _names(parts)
    return tuple(
        word
        for method in _methods(parts)
        for n in method.body
        for word in _words(n, names)
        if not _docs(n)
    )


def operators_of(source: str) -> set[str]:
    """By their names, all that the reference calls and computes with; nothing without a
    `class Model`. Raises SyntaxError where the text is not Python.
    """
    parts = _parts(ast.parse(source))
    names = _names(parts)
    found = set[str]()
    for node in (node for part in parts for node in ast.walk(part)):
        match node:
            case ast.BinOp():
                found.add(type(node.op).__name__.lower())
            case ast.Call(ast.Attribute(ast.Name("self"), attr)) if attr in names:
                pass  # What it is was called where it was made.
            case ast.Call(ast.Attribute(attr=name)):
                found.add(name)
            case ast.Call(ast.Name(name)) if name not in names and not hasattr(builtins, name):
                found.add(name)
    return found - {"__init__"}


def _parts(tree: ast.Module) -> list[ast.ClassDef | ast.FunctionDef]:
    """The model, and what else the text defines but its inputs."""
    defined = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    model = [n for n in defined if isinstance(n, ast.ClassDef) and n.name == MODEL]
    helpers = [n for n in defined if n.name not in (MODEL, *INPUTS)]
    return [*model[:1], *helpers] if model else []


def _methods(parts: Sequence[ast.ClassDef | ast.FunctionDef]) -> Iterator[ast.FunctionDef]:
    for part in parts:
        own = part.body if isinstance(part, ast.ClassDef) else [part]
        yield from (n for n in own if isinstance(n, ast.FunctionDef))


def _names(parts: Sequence[ast.ClassDef | ast.FunctionDef]) -> dict[str, str]:
    """Operators by the names that these call them by: a model's part is what it was made as."""
    names = {}
    for node in (node for part in parts for node in ast.walk(part)):
        match node:
            case ast.ClassDef(name) | ast.FunctionDef(name):
                names[name] = OWN
            case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Call(function)) if (
                name not in names
            ):
                names[name] = _called(function, names)
    return names


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


def _words(node: ast.AST, names: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Call):
        yield f"call {_called(node.func, names)}"
        for argument in (*node.args, *(k.value for k in node.keywords)):
            yield from _words(argument, names)
        if isinstance(node.func, ast.Attribute):
            yield from _words(node.func.value, names)
        return
    if isinstance(node, ast.Name | ast.Constant | ast.arg):
        yield type(node).__name__
        return
    if not isinstance(node, ast.expr_context):
        yield type(node).__name__
        for child in ast.iter_child_nodes(node):
            yield from _words(child, names)


def _called(function: ast.expr, names: Mapping[str, str]) -> str:
    """`torch.relu`, `F.relu` and `x.relu` are one operator, and so is what a model has as its
    part, by whatever name.
    """
    match function:
        case ast.Attribute(ast.Name("self"), name) | ast.Name(name):
            return names.get(name, name)
        case ast.Attribute(attr=name):
            return name
    return type(function).__name__
