"""Whether a kernel's source may keep something between its calls, told by its text alone.

Scratch memory of the device, a ticket that counts blocks, a buffer of launch arguments: calls that
overlap would share it, on two streams or in two threads. What is not certain counts as kept, which
costs a call on a GPU some microseconds, and calls on the CPU their overlap (runtime/order.py).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from agent.export.statics import has_statics

MADE = frozenset(
    f"{begin}{kind}{end}"
    for kind in ("empty", "zeros", "ones", "full", "tensor", "rand", "randn", "arange")
    for begin, end in (("", ""), ("", "_like"), ("new_", ""))
) | {"as_tensor", "from_numpy", "clone", "empty_strided", "new_empty_strided"}
"""Calls that make a tensor."""
PUT = frozenset(
    ("setattr", "__setattr__", "setdefault", "append", "extend", "update", "insert", "appendleft")
)
"""Calls that leave something behind."""
TENSORS = ("Float", "Half", "BFloat16", "Double", "Byte", "Int", "Long")
REMEMBERED = frozenset(f"{kind}Tensor" for kind in TENSORS) | {
    "cache", "lru_cache", "cached_property",
    "addressof", "create_string_buffer", "Structure", "memmove", "memset",
    "pack_into", "bytearray", "memoryview", "caching_allocator_alloc", "get_global",
}  # fmt: skip
"""Names by which results or buffers are kept: of Python, ctypes, struct, torch and cupy."""
HARMLESS = frozenset(("ExternalStream",))
"""Calls whose result may be kept: it is as good for every call."""
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Assigned = ast.Assign | ast.AnnAssign | ast.AugAssign


def keeps(source: str, device: str, state: Collection[str] = ()) -> bool:
    """Whether calls of this candidate are to follow each other; `state` names the reference's
    parameters and buffers, which it may hold. On the CPU a thread's own variables are nobody
    else's; on a GPU its calls may be on several streams.
    """
    tree = ast.parse(source)
    own = {name.rpartition(".")[2] for name in state}
    return any(has_statics(text, device) for text in texts(tree)) or _Python(tree, own).keeps()


def texts(tree: ast.AST) -> Iterator[str]:
    """Strings as they are put together, with 0 for what the text does not tell."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in inside or not _is_text(node):
            continue
        inside |= {id(inner) for inner in ast.walk(node)}
        yield _joined(node)


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return any(isinstance(n, ast.JoinedStr) or _is_string(n) for n in ast.walk(node))
    return isinstance(node, ast.JoinedStr) or _is_string(node)


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _joined(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "0"
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_joined, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined(node.left) + _joined(node.right)
    return "0"


class _Python:
    """The Python side of a source; `own` are names of the reference's tensors."""

    def __init__(self, tree: ast.Module, own: Collection[str]) -> None:
        self.tree, self.own = tree, own
        self.functions = [n for n in ast.walk(tree) if isinstance(n, Function)]
        defined = [f for f in tree.body if isinstance(f, ast.FunctionDef)]
        self.making = MADE | {f.name for f in defined if _calls(f, MADE)}
        """With the functions of the file that make a tensor."""

    def keeps(self) -> bool:
        tree = self.tree
        if any(isinstance(n, ast.Global | ast.Nonlocal) for n in ast.walk(tree)):
            return True
        if not REMEMBERED.isdisjoint(_names(tree)):
            return True
        defaults = (default for f in self.functions for default in _defaults(f))
        if any(_calls(default, self.making) for default in defaults):
            return True
        called = {id(n): f for f in self.functions for n in ast.walk(f) if n is not f}
        """The innermost function around each node: outer ones come first."""
        for node in ast.walk(tree):
            around = called.get(id(node))
            if around is None or _name(around) == "__init__":
                if self._holds(node):
                    return True
            elif _leaves(node, around) or (_nests(around) and self._holds(node)):
                return True
        return False

    def _holds(self, node: ast.AST) -> bool:
        """Whether a tensor is made for good, other than the reference's."""
        if isinstance(node, ast.Call) and _called(node).startswith("register_"):
            first = node.args[0] if node.args else None
            return not (isinstance(first, ast.Constant) and first.value in self.own)
        if not isinstance(node, Assigned) or node.value is None:
            return False
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parameter = isinstance(node.value, ast.Call) and _called(node.value) == "Parameter"
        if parameter and all(isinstance(t, ast.Attribute) and t.attr in self.own for t in targets):
            return False
        return parameter or _calls(node.value, self.making)


def _calls(node: ast.AST, names: Collection[str]) -> bool:
    """Whether one of these is called there."""
    return any(isinstance(n, ast.Call) and _called(n) in names for n in ast.walk(node))


def _leaves(node: ast.AST, around: Function) -> bool:
    """Whether a call leaves something where the next one finds it."""
    if isinstance(node, ast.Call):
        name = _called(node)
        changes = name.endswith("_") and not name.startswith("_")  # in place, by torch's names
        lasting = isinstance(node.func, ast.Attribute) and not _fresh(node.func.value, around)
        return (lasting and (name in PUT or changes)) or name in ("setattr", "__setattr__")
    if not isinstance(node, Assigned):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    places = [
        n for t in targets for n in ast.walk(t) if isinstance(n, ast.Attribute | ast.Subscript)
    ]
    stored = [n for n in places if isinstance(n.ctx, ast.Store)]
    harmless = isinstance(node.value, ast.Call) and _called(node.value) in HARMLESS
    return not harmless and not all(_fresh(place.value, around) for place in stored)


def _fresh(value: ast.AST, around: Function) -> bool:
    """Whether a name is of nothing but what this very call has made."""
    if not isinstance(value, ast.Name):
        return False
    given = [
        node.value
        for node in ast.walk(around)
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == value.id for t in node.targets)
    ]
    literal = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)
    return bool(given) and all(
        isinstance(g, literal) or (isinstance(g, ast.Call) and _called(g) in MADE) for g in given
    )


def _nests(function: Function) -> bool:
    """Whether what it makes may be seen by a function that it returns."""
    return any(isinstance(n, Function) and n is not function for n in ast.walk(function))


def _defaults(function: Function) -> list[ast.expr]:
    given = function.args
    return [*given.defaults, *(d for d in given.kw_defaults if d is not None)]


def _name(function: Function) -> str:
    return "" if isinstance(function, ast.Lambda) else function.name


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _names(tree: ast.Module) -> Iterator[str]:
    """All that are imported or looked up."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (part for alias in node.names for part in alias.name.split("."))
            if isinstance(node, ast.ImportFrom):
                yield from (node.module or "").split(".")
