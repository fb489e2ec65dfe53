"""Whether a kernel's source may keep something between its calls, told by its text alone.

Scratch memory of the device, a ticket that counts blocks, a buffer of launch arguments: calls that
overlap would share it, on two streams or in two threads. What is not certain counts as kept, which
costs a call a few microseconds (runtime/order.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

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
REMEMBERED = frozenset(
    ("cache", "lru_cache", "cached_property", "addressof", "create_string_buffer", "Structure")
)
"""Names by which results or buffers are kept: Python's own, and those of ctypes."""
OWN = frozenset(("Parameter", "register_buffer", "register_parameter"))
"""A tensor in these is the module's parameter or buffer."""
HARMLESS = frozenset(("ExternalStream",))
"""Calls whose result may be kept: it is as good for every call."""
ATTRIBUTES = re.compile(r"\b(?:__align__|alignas|__launch_bounds__|__attribute__)\s*\(+[^()]*\)+")
COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
VARIABLE = re.compile(r"\b((?:__device__|__managed__|static|thread_local)\b[^;{}()=]*)([;{}()=])")
FIXED = re.compile(r"\b(?:const|constexpr|__constant__)\b")


def keeps(source: str, device: str) -> bool:
    """Whether calls of this candidate are to follow each other. On the CPU a thread's own variables
    are nobody else's; on a GPU its calls may be on several streams.
    """
    tree = ast.parse(source)
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    own = device == "cpu"
    return any(isinstance(t, str) and _static(t, own) for t in texts) or _stores(tree)


def _static(code: str, own: bool) -> bool:
    """Whether device or C++ code has a variable that outlives a call, and is not constant; `own`:
    beside those of a thread.
    """
    plain = ATTRIBUTES.sub(" ", COMMENTS.sub(" ", code))
    return any(
        end in ";={" and not FIXED.search(words) and not (own and "thread_local" in words)
        for words, end in VARIABLE.findall(plain)
    )


def _stores(tree: ast.Module) -> bool:
    """Whether Python's side has one."""
    if any(isinstance(n, ast.Global | ast.Nonlocal) for n in ast.walk(tree)):
        return True
    if not REMEMBERED.isdisjoint(_names(tree)):
        return True
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    inside = {id(n) for f in functions for n in ast.walk(f) if n is not f}
    begun = [f for f in functions if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
    once = {id(n) for f in begun for n in ast.walk(f)}
    for node in ast.walk(tree):
        made_once = id(node) not in inside or id(node) in once
        if made_once and isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            if node.value is not None and _makes(node.value):
                return True
        elif not made_once and _leaves(node):
            return True
    return False


def _makes(value: ast.AST) -> bool:
    """Whether a tensor is made there that is no parameter or buffer."""
    if isinstance(value, ast.Call) and _called(value) in OWN:
        return False
    if isinstance(value, ast.Call) and _called(value) in MADE:
        return True
    return any(_makes(inner) for inner in ast.iter_child_nodes(value))


def _leaves(node: ast.AST) -> bool:
    """Whether a call leaves something where the next one finds it."""
    if isinstance(node, ast.Call):
        return _called(node) in PUT
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    places = [
        n for t in targets for n in ast.walk(t) if isinstance(n, ast.Attribute | ast.Subscript)
    ]
    harmless = isinstance(node.value, ast.Call) and _called(node.value) in HARMLESS
    return bool(places) and not harmless


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
