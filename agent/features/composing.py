"""One program of a plan: the terms it computes become operands, values and results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.features.lower import host_name
from agent.features.program import Operand, Program, Result, Value
from agent.features.terms import Term, Unsupported

if TYPE_CHECKING:
    from agent.features.planner import Split


class Composer:
    """One program's operands, values and results."""

    def __init__(
        self,
        split: Split,
        place: int,
        roots: dict[str, Term],
        terms: list[Term],
        rows: list[int],
        columns: list[int],
        reduces: bool,
        inner: list[int],
    ) -> None:
        self.split, self.build, self.place = split, split.build, place
        self.roots, self.terms, self.rows, self.columns = roots, terms, rows, columns
        self.reduces = reduces
        self.inner = inner
        self.operands: list[Operand] = []
        self.values: dict[Term, Value] = {}
        self.scalars: list[str] = []

    def program(self) -> Program:
        for term in self.terms:
            self.values[term] = self.value(term)
        results = tuple(self.result(name, term) for name, term in self.roots.items())
        named = {v.name: v for v in self.values.values()}
        return Program(
            tuple(self.operands),
            tuple(named.values()),
            results,
            self.build.expression(self.rows),
            self.build.expression(self.columns),
            self.reduces,
            tuple(self.scalars),
            self.build.expression(self.inner) if self.inner else "",
            row_count=self.build.size(tuple(self.rows)),
            column_count=self.build.size(tuple(self.columns)),
        )

    def value(self, term: Term) -> Value:
        name = f"v{term.index}"
        held = {self.build.find(a) for a in term.flat}
        element = bool(held & set(self.columns))
        if term.op == "load" or 0 <= self.split.phase[term] < self.place:
            self.operands.append(self.operand(term, held))
            return Value(name, "load", (self.operands[-1].name,), term.kind, element, 0)
        if term.op == "count":
            atoms = self.split.atoms(term)
            if set(atoms) == set(self.columns):
                return Value(name, "columns", (), "float", False, 0)
            expression = self.build.expression(atoms)
            if expression not in self.scalars:
                self.scalars.append(expression)
            return Value(name, "scalar", (self.scalars.index(expression),), "float", False, 0)
        arguments = [self.values[a] for a in term.arguments]
        if term.op in ("same", "apart", "kept") and arguments[0].element == element:
            return arguments[0]
        along = set(self.split.atoms(term)) if term.op == "pick" else set(self.columns)
        if along != set(self.columns) or (term.op == "pick" and self.inner):
            raise Unsupported("no feature template for aten.gather along a leading dimension")
        behind = {self.split.phase[a] for a in term.arguments}
        if term.op == "pick" and self.place in self.split.scans & behind:
            raise Unsupported("no feature template for aten.gather from a scan")
        if term.op.startswith("scan.") and not arguments[0].element:
            raise Unsupported("no feature template for a scan of a broadcast tensor")
        if term.window and not arguments[0].element:
            raise Unsupported("no feature template for a pooling of a broadcast tensor")
        op = term.op.replace("window.", "reduce.")
        depth = max((a.depth for a in arguments), default=0) + op.startswith("reduce.")
        literals = tuple(a for a in term.args if not isinstance(a, Term | str))
        args = tuple(a.name for a in arguments) + literals
        said = term.statement if op != "const" else ""
        return Value(name, op, args, term.kind, element, depth, said)

    def operand(self, term: Term, held: set[int]) -> Operand:
        name = f"p{len(self.operands)}"
        own = [self.build.find(a) for a in term.flat]
        batch = len(self.rows) - len(self.inner)
        turned = bool(self.inner) and own == self.rows[:batch] + self.columns + self.inner
        if not turned and own != [a for a in (*self.rows, *self.columns) if a in held]:
            raise Unsupported("no feature template for operands transposed otherwise")
        inside = held & set(self.columns)
        if inside and inside != set(self.columns):
            raise Unsupported("no feature template for a broadcast within the reduced dimensions")
        if term.sliced is not None and (turned or self.build.find(term.sliced) != self.columns[0]):
            raise Unsupported("no feature template for slices along this dimension")
        above = [i for i, a in enumerate(self.rows) if a in held]
        row, div, mod = "none", "1", "1"
        if above and len(above) == len(self.rows):
            row = "full"
        elif above:
            if above != list(range(above[0], above[-1] + 1)):
                raise Unsupported("no feature template for a broadcast in the middle of an operand")
            row = "cyclic"
            div = self.build.expression(self.rows[above[-1] + 1 :])
            mod = self.build.expression([self.rows[i] for i in above])
        if term.op == "load":
            node = self.split.lowered.nodes[str(term.args[0])]
            source, dtype = host_name(node), node.meta.dtype
        else:
            source, dtype = self.split.workspaces[term], self.workspace_dtype(term)
        part = term.part or (0, 1)
        return Operand(name, source, dtype, row, bool(inside), div, mod, part, turned)

    def workspace_dtype(self, term: Term) -> str:
        kinds = {"float": "float32", "int": "int64", "bool": "bool"}
        return self.split.dtypes.get(term, kinds[term.kind])

    def result(self, name: str, term: Term) -> Result:
        held = {self.build.find(a) for a in term.flat}
        element = bool(held & set(self.columns))
        if held != {*self.rows, *(self.columns if element else ())}:
            raise Unsupported("no feature template for a result that is smaller than its program")
        turned = element and self.reduces and bool(self.inner)
        batch = len(self.rows) - len(self.inner)
        wanted = self.rows + self.columns * element
        wanted = self.rows[:batch] + self.columns + self.inner if turned else wanted
        if [self.build.find(a) for a in term.flat] != wanted:
            raise Unsupported("no feature template for a transposed result")
        shape = tuple(self.build.expression(g) for g in term.axes)
        if name not in self.split.outputs:
            dtype = self.workspace_dtype(term)
            return Result(name, self.values[term].name, dtype, element, shape, turned)
        meta = self.split.lowered.nodes[name.removeprefix("out_")].meta
        sizes = tuple(self.build.size(g) for g in term.axes)
        padded = (1,) * (len(meta.shape) - len(sizes)) + sizes
        if padded != meta.shape:
            raise Unsupported("no feature template for a result that is a broadcast")
        if not _contiguous(meta.shape, meta.stride):
            raise Unsupported("no feature template for results that are not contiguous")
        shape = ("1",) * (len(meta.shape) - len(sizes)) + shape
        return Result(name, self.values[term].name, meta.dtype, element, shape, turned)


def _contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= max(size, 1)
    return True
