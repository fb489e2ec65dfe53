"""ATen graph -> terms: scalar operations whose dimensions are known by identity, not by size.

Every dimension of a placeholder is an *atom*; operators unify atoms (adding two tensors says that
their dimensions are the same one), so `x - x.mean(-1)` on a square matrix is seen for what it is.
Composite operators (layer norm, softmax, gelu) become reductions and scalar operations here.
Anything else raises Unsupported with one readable line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agent.features.program import Window
from sandbox.graph import Arg, Graph, Node, Ref


class Unsupported(Exception):
    """The reference is no row program; the message is one line that says why."""


Group = tuple[int, ...]
"""Atoms behind one dimension; empty where the dimension has size 1 or is broadcast."""
FLOATS = {"float32", "bfloat16", "float16"}
ALIASES = {
    "input", "parameter", "buffer", "getitem", "aten.view", "aten.unsqueeze", "aten.squeeze",
    "aten.expand", "aten.permute", "aten.slice", "aten.alias", "aten.detach",
    "aten.lift_fresh_copy",
}  # fmt: skip
SPLIT_TWICE = "no feature template for a dimension that is split in two ways"
INTEGERS = {"int64", "int32", "int16", "int8", "uint8"}


def kind_of(dtype: str) -> str:
    """`float`, `int` or `bool`: what a scalar of this dtype is computed as."""
    if dtype in FLOATS:
        return "float"
    if dtype in INTEGERS:
        return "int"
    if dtype == "bool":
        return "bool"
    raise Unsupported(f"no feature template for {dtype} tensors")


@dataclass(frozen=True, eq=False)
class Term:
    """One scalar operation over its atoms: `load`, `const`, `reduce.*`, a pointwise one."""

    op: str
    args: tuple[Term | float | int | bool | str, ...]
    kind: str
    axes: tuple[Group, ...]
    index: int
    part: tuple[int, int] | None = None
    """(k, n) of a load: the k-th of n equal parts along the leading sliced dimension."""
    sliced: int | None = None
    """The atom (of the part) along which a load is sliced."""
    window: Window | None = None
    """Of a pooling (`window.*`): its axes are the outputs'."""


@dataclass(frozen=True)
class Atom:
    expression: str
    """Python, evaluated by the candidate: `x0.shape[1]`."""
    size: int


@dataclass
class Builder:
    """Terms made so far, and which atoms are the same."""

    terms: list[Term] = field(default_factory=list)
    atoms: list[Atom] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    known: dict[object, Term] = field(default_factory=dict)
    splits: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Atoms that are two, the first one running slower; see `split`."""

    def atom(self, expression: str, size: int) -> int:
        for i, atom in enumerate(self.atoms):
            if atom.expression == expression:
                return i
        self.atoms.append(Atom(expression, size))
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def split(self, atom: int, parts: int) -> tuple[Group, Group]:
        """The two dimensions behind one of so many equal parts. Until all is lowered the whole one
        stands beside them; then it is both of them everywhere (`parted`).
        """
        expression, size = self.atoms[atom].expression, self.atoms[atom].size
        outer = self.atom(f"min({expression}, {parts})", parts)
        inner = self.atom(f"(({expression}) // {parts})", size // parts)
        if self.splits.setdefault(atom, (outer, inner)) != (outer, inner):
            raise Unsupported(SPLIT_TWICE)
        return (outer,) if parts > 1 else (), (inner,) if size > parts else ()

    def parted(self) -> dict[Term, Term]:
        """Every term with split atoms replaced by their parts, which are all terms from now on."""
        parts: dict[int, Group] = {}
        for whole, (outer, inner) in self.splits.items():
            kept = tuple(a for a in (outer, inner) if self.atoms[a].size > 1)
            if parts.setdefault(self.find(whole), kept) != kept:
                raise Unsupported(SPLIT_TWICE)

        def group(atoms: Group) -> Group:
            return tuple(part for a in atoms for part in parts.get(self.find(a), (a,)))

        found: dict[Term, Term] = {}
        for term in self.terms:
            if term.sliced is not None and self.find(term.sliced) in parts:
                raise Unsupported("no feature template for parts of a dimension that is split")
            args: list[Term | float | int | bool | str] = []
            for arg in term.args:
                if isinstance(arg, str) and arg.startswith("@"):
                    args += [f"@{a}" for a in group((int(arg[1:]),))]
                else:
                    args.append(found[arg] if isinstance(arg, Term) else arg)
            axes = tuple(map(group, term.axes))
            found[term] = replace(term, args=tuple(args), axes=axes)
        self.terms = list(found.values())
        return found

    def find(self, atom: int) -> int:
        while self.parent[atom] != atom:
            atom = self.parent[atom]
        return atom

    def resolve(self, group: Group) -> Group:
        return tuple(self.find(a) for a in group)

    def size(self, group: Group) -> int:
        return math.prod(self.atoms[a].size for a in group)

    def expression(self, group: Sequence[int]) -> str:
        """Python of a size."""
        return " * ".join(self.atoms[a].expression for a in group) or "1"

    def unify(self, a: Group, b: Group) -> Group:
        if not a or not b:
            return a or b
        if len(a) != len(b):
            raise Unsupported("no feature template for dimensions that are merged differently")
        for left, right in zip(self.resolve(a), self.resolve(b), strict=True):
            if left != right:
                if self.atoms[left].size != self.atoms[right].size:
                    raise Unsupported(
                        "no feature template for dimensions that are merged differently"
                    )
                self.parent[max(left, right)] = min(left, right)
        return a

    def make(
        self,
        op: str,
        args: Sequence[Term | float | int | bool | str],
        kind: str,
        axes: Sequence[Group],
        part: tuple[int, int] | None = None,
        sliced: int | None = None,
        window: Window | None = None,
    ) -> Term:
        axes = tuple(axes)
        key = (
            op,
            *(repr(a) if not isinstance(a, Term) else a.index for a in args),
            kind,
            axes,
            part,
            window,
        )
        if key not in self.known:
            term = Term(op, tuple(args), kind, axes, len(self.terms), part, sliced, window)
            self.terms.append(term)
            self.known[key] = term
        return self.known[key]

    def const(self, value: float | int | bool) -> Term:
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        return self.make("const", (value,), kind, ())

    def point(self, op: str, *args: Term | float | int | bool, kind: str | None = None) -> Term:
        """A pointwise operation with broadcasting; numbers become constants."""
        terms = [a if isinstance(a, Term) else self.const(a) for a in args]
        axes: list[Group] = [()] * max(len(t.axes) for t in terms)
        for term in terms:
            for i, group in enumerate(reversed(term.axes), 1):
                axes[-i] = self.unify(axes[-i], group)
        return self.make(op, terms, kind or "float", axes)

    def arithmetic(self, op: str, a: Term | float | int, b: Term | float | int) -> Term:
        kinds = {(t.kind if isinstance(t, Term) else self.const(t).kind) for t in (a, b)}
        kind = "float" if "float" in kinds or op == "div" else "int"
        return self.point(op, a, b, kind=kind)

    def reduce(self, op: str, a: Term, dims: Sequence[int], keep: bool) -> Term:
        dims = [d % max(len(a.axes), 1) for d in dims] or list(range(len(a.axes)))
        atoms = tuple(x for d in dims for x in a.axes[d])
        axes = [() if i in dims else g for i, g in enumerate(a.axes) if keep or i not in dims]
        if not atoms:
            return self.reshape(a, axes)
        kind = "int" if op == "sum" and a.kind in ("int", "bool") else "float"
        return self.make(f"reduce.{op}", (a, *(f"@{x}" for x in atoms)), kind, axes)

    def reshape(self, a: Term, axes: Sequence[Group]) -> Term:
        axes = tuple(axes)
        return a if a.axes == axes else self.make("same", (a,), a.kind, axes)

    def apart(self, a: Term) -> Term:
        """The same value, kept by one program and read by the next."""
        return self.make("apart", (a,), a.kind, a.axes)

    def count(self, a: Term, dims: Sequence[int]) -> Term:
        dims = [d % max(len(a.axes), 1) for d in dims] or list(range(len(a.axes)))
        return self.make("count", tuple(f"@{x}" for d in dims for x in a.axes[d]), "float", ())

    def mean(self, a: Term, dims: Sequence[int], keep: bool) -> Term:
        return self.point("div", self.reduce("sum", a, dims, keep), self.count(a, dims))

    def variance(self, a: Term, dims: Sequence[int], keep: bool, correction: float) -> Term:
        centred = self.point("sub", a, self.mean(a, dims, True))
        total = self.reduce("sum", self.point("square", centred), dims, keep)
        count = self.count(a, dims)
        if correction:
            count = self.point("maximum", self.point("sub", count, float(correction)), 0.0)
        return self.point("div", total, count)


@dataclass(frozen=True)
class Effect:
    """What a call leaves in a buffer: Python, in which `{}` is a tensor of a value, if any."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class Lowered:
    """A whole reference as terms."""

    builder: Builder
    result: Arg
    values: dict[str, Term]
    nodes: dict[str, Node]
    placeholders: tuple[Node, ...]
    products: tuple[tuple[str, str], ...] = ()
    """(local variable, Python): what the library computes before the programs."""
    effects: tuple[Effect, ...] = ()


Handler = Callable[["Lowering", Node], Term | None]


class Lowering:
    """Walks the graph; handlers for single operators live in aten.py."""

    def __init__(
        self, graph: Graph, handlers: dict[str, Handler], *, library_bias: bool = False
    ) -> None:
        self.graph = graph
        self.library_bias = library_bias
        self.handlers = handlers
        self.build = Builder()
        self.values: dict[str, Term] = {}
        self.nodes = {n.name: n for n in graph.nodes}
        self.spoken: dict[str, str] = {}
        """Python for nodes that are known before any program runs."""
        self.products: list[tuple[str, str]] = []
        self.effects: list[Effect] = []

    def run(self) -> Lowered:
        for node in self.graph.nodes:
            if node.op in ("input", "parameter", "buffer"):
                self.values[node.name] = self.load(node)
                self.spoken[node.name] = host_name(node)
                continue
            if self.counts(node):
                continue
            handler = self.handlers.get(node.op.rsplit(".", 1)[0].removesuffix("_"))
            if handler is None:
                raise Unsupported(f"no feature template for {node.op.rsplit('.', 1)[0]}")
            if node.op.split(".")[-2:-1] and node.op.split(".")[-2].endswith("_"):
                self.check_private(node)
            term = handler(self, node)
            if term is not None:
                self.values[node.name] = term
        places = tuple(n for n in self.graph.nodes if n.op in ("input", "parameter", "buffer"))
        products = tuple(self.products)
        if self.build.splits:
            parted = self.build.parted()
            self.values = {name: parted[term] for name, term in self.values.items()}
        shared = (self.build, self.graph.result, self.values, self.nodes)
        return Lowered(*shared, places, products, tuple(self.effects))

    def load(self, node: Node) -> Term:
        kind = kind_of(node.meta.dtype)
        name = host_name(node)
        axes = [
            (self.build.atom(f"{name}.shape[{d}]", size),) if size != 1 else ()
            for d, size in enumerate(node.meta.shape)
        ]
        return self.build.make("load", (node.name,), kind, axes)

    def counts(self, node: Node) -> bool:
        """Whether it adds a number to a buffer that nothing else reads."""
        if node.op != "aten.add_.Tensor" or not isinstance(node.args[0], Ref):
            return False
        buffer, amount = self.nodes[node.args[0].node], node.args[1]
        if buffer.op != "buffer" or not isinstance(amount, int | float) or len(node.args) > 2:
            return False
        self.changes(buffer, node)
        self.effects.append(Effect(f"{host_name(buffer)}.add_({amount})"))
        return True

    def changes(self, buffer: Node, node: Node) -> None:
        """Raises Unsupported where another node reads what this one writes."""
        others = (other for other in self.graph.nodes if other is not node)
        if any(Ref(buffer.name) in _refs(other.args) for other in others):
            raise Unsupported("no feature template for a buffer that is written and read")

    def check_private(self, node: Node) -> None:
        """Only intermediates may be written: an alias of a placeholder would lose the write."""
        target = node.args[0]
        if not isinstance(target, Ref) or self.nodes[target.node].op.rsplit(".", 1)[0] in ALIASES:
            raise Unsupported(f"no feature template for the in-place {node.op.rsplit('.', 1)[0]}")
        for other in self.graph.nodes[: self.graph.nodes.index(node)]:
            if other.op.rsplit(".", 1)[0] in ALIASES and target in other.args:
                raise Unsupported("no feature template for a write below a view")

    def term(self, arg: Arg) -> Term:
        if isinstance(arg, Ref):
            if arg.node not in self.values:
                raise Unsupported(f"no feature template for {self.nodes[arg.node].op}")
            return self.values[arg.node]
        if isinstance(arg, bool | int | float):
            return self.build.const(arg)
        raise Unsupported(f"no feature template for the argument {arg!r}")

    def arg(self, node: Node, place: int, name: str, default: Arg) -> Arg:
        return node.args[place] if place < len(node.args) else node.kwargs.get(name, default)


def _refs(args: Sequence[Arg]) -> list[Ref]:
    found = [a for a in args if isinstance(a, Ref)]
    return found + [r for a in args if isinstance(a, tuple) for r in _refs(a)]


def product_name(node: Node) -> str:
    """The local variable that holds what the library computed."""
    return f"m_{node.name}"


def host_name(node: Node) -> str:
    """The local variable (`x0`) or attribute (`self.ln.weight`) that holds a placeholder."""
    if node.op not in ("input", "parameter", "buffer"):
        return product_name(node)
    if node.op == "input":
        return f"x{node.target}"
    if all(part.isidentifier() for part in node.target.split(".")):
        return f"self.{node.target}"
    return f"self.get_{node.op}({node.target!r})"  # in a Sequential, say: `net.0.weight`
