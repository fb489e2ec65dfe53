"""Scalar operations on tensors whose dimensions are known by identity, not by size.

Every dimension of a placeholder is an *atom*; operators unify atoms (adding two tensors says that
their dimensions are the same one), so `x - x.mean(-1)` on a square matrix is seen for what it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agent.features.program import Window


class Unsupported(Exception):
    """The reference is no row program; the message is one line that says why."""


Group = tuple[int, ...]
"""Atoms behind one dimension; empty where the dimension has size 1 or is broadcast."""
FLOATS = {"float32", "bfloat16", "float16"}
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
    window: Window = ()
    """Of a pooling (`window.*`): its axes are the outputs'."""
    statement: str = ""
    """Of the reference, which it is first needed for."""

    @property
    def arguments(self) -> list[Term]:
        return [a for a in self.args if isinstance(a, Term)]

    @property
    def flat(self) -> list[int]:
        """The atoms of all its dimensions."""
        return [a for group in self.axes for a in group]


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
    statement: str = ""
    """What is being lowered."""

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
        window: Window = (),
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
            place, said = len(self.terms), self.statement
            term = Term(op, tuple(args), kind, axes, place, part, sliced, window, said)
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

    def kept(self, a: Term) -> Term:
        """The same value, which a program leaves in memory."""
        return self.make("kept", (a,), a.kind, a.axes)

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
