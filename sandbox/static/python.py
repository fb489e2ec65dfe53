"""A candidate's Python: what reaches for the harness is refused, what it calls is told.

Refused are names, not effects: replacing the clock, the collector, torch.cuda's or torch.Tensor's
functions, walking frames or the collector's objects, the harness's own modules, other processes.
"""

from __future__ import annotations

import ast
import builtins
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from sandbox.static.cpp import OTHERS_MEMORY
from sandbox.static.names import FUNCTIONS, Names, literal
from sandbox.static.words import CONTAINERS, METHODS, PLUMBING

REFUSED_NAMES = {
    **dict.fromkeys(
        ("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
        "finds the harness's objects through the garbage collector",
    ),
    **dict.fromkeys(
        (
            *("sys._getframe", "sys._current_frames", "inspect.currentframe", "inspect.stack"),
            *("inspect.trace", "inspect.getouterframes", "inspect.getinnerframes"),
        ),
        "walks the harness's frames",
    ),
    **dict.fromkeys(
        ("sys.settrace", "sys.setprofile", "threading.settrace", "threading.setprofile"),
        "traces the harness",
    ),
}
SYSTEM_CALLS = frozenset({"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"})
SIGNALS = frozenset({"os.kill", "os.killpg", "signal.pidfd_send_signal"})
LIBC_SIGNALS = frozenset({"kill", "killpg", "tkill", "tgkill"})
HARNESS = frozenset(
    (
        *("sandbox", "kernelbench", "agent", "rl", "rewards", "warpsmith"),
        *("tests", "benchmarks"),
    )
)
"""Our own packages: a candidate is one self-contained file."""
COMPARATORS = frozenset({"torch.equal", "torch.allclose", "torch.isclose", "torch.is_tensor"})
PROTECTED = {
    "time": time,
    "gc": gc,
    "builtins": builtins,
    "torch.cuda": torch.cuda,
    "torch.cuda.Event": torch.cuda.Event,
    "torch.cuda.Stream": torch.cuda.Stream,
    "torch.Tensor": torch.Tensor,
}
"""Owners of functions that the harness itself relies on; a new name on them is no replacement."""
GRAPHS = frozenset(
    {"torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.make_graphed_callables"}
)
TOPICS = {
    "torch.compile": ("compiled by torch", "torch.compile"),
    "torch.jit.script": ("compiled by torch", "torch.jit.script"),
    "torch.jit.trace": ("compiled by torch", "torch.jit.trace"),
    "torch.cuda.Stream": ("streams", "torch.cuda.Stream"),
    "torch.cuda.ExternalStream": ("streams", "torch.cuda.ExternalStream"),
    "builtins.exec": ("run-time code", "exec"),
    "builtins.eval": ("run-time code", "eval"),
    "marshal.loads": ("run-time code", "marshal"),
    "pickle.loads": ("run-time code", "pickle"),
    "builtins.__import__": ("run-time imports", "__import__"),
    "importlib.import_module": ("run-time imports", "importlib"),
    "atexit.register": ("exit hooks", "atexit"),
    "signal.signal": ("signal handlers", "signal"),
}
MODULES = {
    "threading": "threads",
    "concurrent": "threads",
    "asyncio": "threads",
    "_thread": "threads",
    "multiprocessing": "processes",
    "subprocess": "processes",
    "socket": "sockets",
    "mmap": "memory maps",
    "flash_attn": "libraries",
    "xformers": "libraries",
    "cublas": "libraries",
    "cutlass": "libraries",
}


@dataclass
class Reading:
    """Collected while the tree is walked."""

    refused: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """String literals that are no docstrings."""
    graphs: bool = False


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


def read(tree: ast.Module) -> Reading:
    """Everything the module's own text says."""
    reader = _Reader(tree)
    reader.visit(tree)
    return reader.seen


class _Reader(ast.NodeVisitor):
    def __init__(self, tree: ast.Module) -> None:
        self.seen = Reading()
        self.names = Names(tree)
        self.imports_ctypes = any(
            alias.name.partition(".")[0] in ("ctypes", "cffi")
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        ) or any(isinstance(n, ast.ImportFrom) and n.module == "ctypes" for n in ast.walk(tree))

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, FUNCTIONS):
            for outside in (*getattr(node, "decorator_list", ()), node.args):
                self.visit(outside)
            self.names.enter(node)
            body = node.body if isinstance(node.body, list) else [node.body]
            for child in body:
                self.visit(child)
            self.names.leave()
            return
        super().generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self.names.path(called) == "triton.jit":
                self.seen.kernels.append(node.name)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.generic_visit(node)  # a docstring says nothing

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._text(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._text(literal(node) or "")
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = literal(node)
        if text is not None:
            self._text(text)
            return
        if isinstance(node.op, ast.MatMult):
            self._note("torch operators", "matmul")
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._module(node.module or "")
        for alias in node.names:
            self._use(f"{node.module or ''}.{alias.name}")

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._replaced(target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replaced(node.target)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._replaced(target)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._use(self.names.path(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._use(self.names.path(node))
        if self.imports_ctypes and node.attr in SYSTEM_CALLS:
            self._refuse(f"{node.attr} reaches into other processes")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._use(self.names.path(node))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = self.names.path(node.func)
        self._called(function, node)
        resolved = self.names.path(node)
        if not resolved.endswith("()"):
            self._use(resolved)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in METHODS and (not function or "()." in function):
            self._note("torch operators", method)
        self.generic_visit(node)

    def _called(self, function: str, node: ast.Call) -> None:
        first = node.args[0] if node.args else None
        if function in SIGNALS and self.names.path(first) != "os.getpid()":
            self._refuse(f"{function} signals other processes")
        owner, _, name = function.rpartition(".")
        signals = owner == "ctypes.libc" and name in LIBC_SIGNALS
        if signals and self.names.path(first) != "os.getpid()":
            self._refuse(f"{name} through ctypes signals other processes")
        if function in ("builtins.setattr", "builtins.delattr") and len(node.args) >= 2:
            attribute, whose = literal(node.args[1]), self.names.path(first)
            if whose and attribute:
                self._protect(f"{whose}.{attribute}")
        if function.endswith(("mock.patch", "mock.patch.object")):
            self._protect(literal(first) or "")

    def _use(self, path: str) -> None:
        if not path:
            return
        if path in REFUSED_NAMES:
            self._refuse(f"{path} {REFUSED_NAMES[path]}")
        if path.partition(".")[0] in HARNESS:
            self._refuse(f"{path} is the harness's own module")
        if path in TOPICS:
            self._note(*TOPICS[path])
        if path in GRAPHS:
            self.seen.graphs = True
            self._note("graphs", path)
        root, _, last = path.rpartition(".")
        if path.startswith(("torch.ops.", "torch._C.")):
            self._note("torch operators", path)
        elif root in ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft"):
            found = getattr(torch, last, None) if root == "torch" else torch.relu
            if last not in PLUMBING and callable(found) and not isinstance(found, type):
                self._note("torch operators", last)
        elif root == "torch.nn" and last[:1].isupper() and last not in CONTAINERS:
            self._note("torch modules", last)

    def _module(self, name: str) -> None:
        root = name.partition(".")[0]
        if root in HARNESS:
            self._refuse(f"{name} is the harness's own module")
        if root in MODULES:
            self._note(MODULES[root], root)

    def _replaced(self, target: ast.AST) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._replaced(part)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            self._protect(self.names.path(target))

    def _protect(self, path: str) -> None:
        """Refuse where `path`, or what it is a part of, is a function of ours."""
        for whole in _prefixes(path):
            owner, _, name = whole.rpartition(".")
            found = PROTECTED.get(owner)
            replaces = found is not None and callable(getattr(found, name, None))
            if replaces or whole in COMPARATORS or whole in HARNESS:
                self._refuse(f"{whole} is replaced, which the harness relies on")

    def _text(self, text: str) -> None:
        if OTHERS_MEMORY.fullmatch(text):
            self._refuse(f"{text} is the memory of a process")
        self.seen.texts.append(text)

    def _note(self, topic: str, name: str) -> None:
        self.seen.facts.append((topic, name))

    def _refuse(self, words: str) -> None:
        self.seen.refused = self.seen.refused or words


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split(".") if path else []
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])
