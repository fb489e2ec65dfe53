"""What a name or an expression in Python source refers to, as a dotted path, without running it.

Follows imports, aliases, `getattr` with literal names, `vars(x)["name"]` and `x.__dict__["name"]`.
A name that is also bound to something else in its scope refers to nothing.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping

UNKNOWN = ""
Scope = Mapping[str, str]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Names:
    """The scopes around the node that is being looked at, innermost last."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes: list[Scope] = []
        self.enter(tree)

    def enter(self, node: ast.AST) -> None:
        """Into a module or a function."""
        self.scopes.append({})
        bound: dict[str, str] = {}
        for name, value in _bindings(node):
            path = value if isinstance(value, str) else self._once(value)
            # Bound twice to different things: it stands for neither.
            bound[name] = path if bound.get(name, path) == path else UNKNOWN
            self.scopes[-1] = bound

    def leave(self) -> None:
        self.scopes.pop()

    def path(self, node: ast.AST | None) -> str:
        """`torch.cuda.synchronize`, or an empty string where it cannot be told."""
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute):
            return _joined(self.path(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return self._item(self.path(node.value), literal(node.slice))
        if isinstance(node, ast.NamedExpr):
            return self.path(node.value)
        if isinstance(node, ast.Call):
            return self._call(node)
        return UNKNOWN

    def _name(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return f"builtins.{name}" if hasattr(builtins, name) else UNKNOWN

    def _item(self, path: str, key: str | None) -> str:
        if key is None:
            return UNKNOWN
        if path == "sys.modules":
            return key
        owner, dot, last = path.rpartition(".")
        return f"{owner}.{key}" if dot and last == "__dict__" else UNKNOWN

    def _call(self, node: ast.Call) -> str:
        function = self.path(node.func)
        first = node.args[0] if node.args else None
        text = literal(first)
        if function == "builtins.getattr" and len(node.args) >= 2:
            named = literal(node.args[1])
            return UNKNOWN if named is None else _joined(self.path(first), named)
        if function in ("builtins.__import__", "importlib.import_module"):
            return text or UNKNOWN
        if function == "builtins.vars" and first is not None:
            return _joined(self.path(first), "__dict__")
        if function in ("ctypes.CDLL", "ctypes.PyDLL"):
            system = text is None and isinstance(first, ast.Constant) and first.value is None
            return "ctypes.libc" if system or (text or "").startswith("libc.") else UNKNOWN
        return f"{function}()" if function else UNKNOWN

    def _once(self, value: ast.AST | None) -> str:
        return UNKNOWN if value is None else self.path(value)


def literal(node: ast.AST | None) -> str | None:
    """The text of a string literal, concatenations folded; `*` for what an f-string fills in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = literal(node.left), literal(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "*" for part in node.values)
    return None


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else UNKNOWN


def _bindings(scope: ast.AST) -> Iterator[tuple[str, str | ast.AST | None]]:
    """(name, what it is bound to) for everything bound in this scope, nested scopes left out."""
    if isinstance(scope, FUNCTIONS):
        arguments = scope.args
        for argument in (
            *(*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs),
            *(a for a in (arguments.vararg, arguments.kwarg) if a is not None),
        ):
            yield argument.arg, None
    for node in _own_nodes(scope):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or '.'}.{alias.name}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                yield target.id, node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, None
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, None


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a scope in source order, without the bodies of functions in it.

    A simple assignment is one node: its target is not given again.
    """
    stack: list[ast.AST] = list(reversed(list(ast.iter_child_nodes(scope))))
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, FUNCTIONS):
            continue
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            children = [c for c in children if not isinstance(c, ast.Name) or c is node.value]
        stack += reversed(children)
