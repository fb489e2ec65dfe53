"""Terms -> programs: which values each one computes, what it reads, and in what order of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.features.aten import lower
from agent.features.lower import Effect, Lowered, Term, Unsupported, host_name
from agent.features.program import Operand, Plan, Program, Result, Value
from sandbox.graph import Arg, Graph, Ref


def plan(graphs: Sequence[Graph]) -> Plan:
    """The one plan that is right for every shape of a task; raises Unsupported."""
    plans = [_plan(graph) for graph in graphs]
    first = plans[0]
    for other in plans[1:]:
        if other != first:
            raise Unsupported(
                "no feature template for a structure or constant that varies with the shape"
            )
    return first


def _plan(graph: Graph) -> Plan:
    """Biases of convolutions are added by the programs, or, where these cannot, by the library."""
    try:
        return _planned(graph)
    except Unsupported:
        biased = any(n.op.startswith("aten.convolution") and n.args[2] for n in graph.nodes)
        if not biased:
            raise
        return _planned(graph, library_bias=True)


def _planned(graph: Graph, *, library_bias: bool = False) -> Plan:
    lowered = lower(graph, library_bias=library_bias)
    split = _Split(lowered)
    inputs = sum(n.op == "input" for n in lowered.placeholders) + len(graph.scalars)
    return Plan(
        split.programs(), inputs, lowered.result, lowered.products, split.effects(lowered.effects)
    )


def _flat(term: Term) -> list[int]:
    return [a for group in term.axes for a in group]


def _arguments(term: Term) -> list[Term]:
    return [a for a in term.args if isinstance(a, Term)]


class _Split:
    """Assigns every reduction to a phase (one program each) by the atoms it reduces."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered, self.build = lowered, lowered.builder
        self.phase: dict[Term, int] = {}
        self.reduced: list[tuple[int, ...]] = []
        self.scans: set[int] = set()
        """Phases that are a scan and what follows it, reductions excepted."""
        for term in self.build.terms:
            self.phase[term] = self._phase(term)
        self.outputs = {f"out_{name}": lowered.values[name] for name in _names(lowered.result)}
        if not self.outputs:
            raise Unsupported("no feature template for a reference that returns no tensor")
        self.workspaces: dict[Term, str] = {}

    def atoms(self, term: Term) -> tuple[int, ...]:
        """What a reduction or pick runs along."""
        marks = [a for a in term.args if isinstance(a, str) and a.startswith("@")]
        return tuple(sorted({self.build.find(int(a[1:])) for a in marks}))

    def _phase(self, term: Term) -> int:
        before = max((self.phase[a] for a in _arguments(term)), default=-1)
        if term.op == "apart":
            return self._behind(before)
        if term.window is not None:  # each in a phase of its own: no other reduces along it
            self.reduced.append((-1 - term.index,))
            return len(self.reduced) - 1
        scans = term.op.startswith("scan.")
        if not (scans or term.op.startswith("reduce.")):
            return before
        along, first = self.atoms(term), max(before, 0)
        if scans:
            self.scans.add(len(self.reduced))
            first = len(self.reduced)
        for place in range(first, len(self.reduced)):
            if self.reduced[place] == along and place not in self.scans:
                return place
        self.reduced.append(along)
        return len(self.reduced) - 1

    def _behind(self, before: int) -> int:
        """A phase that reduces nothing and comes after this one."""
        for place in range(before + 1, len(self.reduced)):
            if not self.reduced[place]:
                return place
        self.reduced.append(())
        return len(self.reduced) - 1

    def programs(self) -> tuple[Program, ...]:
        count = max(len(self.reduced), 1)
        roots: list[dict[str, Term]] = [{} for _ in range(count)]
        for name, term in self.outputs.items():
            roots[max(self.phase[term], 0)][name] = term
        for effect in filter(None, (effect.value for effect in self.lowered.effects)):
            self._keep(self.lowered.values[effect], roots)
        for place in reversed(range(count)):
            for term in self._crossing(roots[place], place):
                self._keep(term, roots)
        return tuple(self._program(i, roots[i]) for i in range(count) if roots[i])

    def _keep(self, term: Term, roots: list[dict[str, Term]]) -> None:
        """In a workspace, which the program of its phase writes."""
        self.workspaces[term] = f"w{term.index}"
        roots[self.phase[term]][f"w{term.index}"] = term

    def effects(self, effects: Sequence[Effect]) -> tuple[str, ...]:
        """Python that follows the programs."""
        values = self.lowered.values
        return tuple(
            e.text.format(self.workspaces[values[e.value]]) if e.value else e.text for e in effects
        )

    def _crossing(self, roots: dict[str, Term], place: int) -> list[Term]:
        """Values of earlier phases that this phase reads."""
        found = [t for t in self._closure(roots, place) if 0 <= self.phase[t] < place]
        return [t for t in found if t.op != "const"]

    def _closure(self, roots: dict[str, Term], place: int) -> list[Term]:
        seen: dict[Term, None] = {}
        stack = list(roots.values())
        while stack:
            term = stack.pop()
            if term not in seen:
                seen[term] = None
                if not 0 <= self.phase[term] < place:
                    stack.extend(_arguments(term))
        return sorted(seen, key=lambda t: t.index)

    def _program(self, place: int, roots: dict[str, Term]) -> Program:
        terms = self._closure(roots, place)
        pooling = next((t for t in terms if t.window and self.phase[t] == place), None)
        if pooling is not None:
            return self._pooling(pooling, place, roots, terms)
        reduces = any(t.op.startswith("reduce.") and self.phase[t] == place for t in terms)
        order = self._order(roots, terms)
        scans = any(t.op.startswith("scan.") and self.phase[t] == place for t in terms)
        turns = set() if reduces or scans else {t for t in map(self._turned(order), terms) if t}
        if len(turns) > 1:
            raise Unsupported("no feature template for operands transposed in different ways")
        batch, count = turns.pop() if turns else (0, 0)
        if count:
            columns = order[-count:]
        elif reduces or scans:
            columns = self._along(order, place, scans)
            if order[len(order) - len(columns) :] != columns:
                batch, count = order.index(columns[0]), len(columns)
        else:
            columns = self._columns(order, terms)
        rows = [a for a in order if a not in columns]
        inner = rows[batch:] if count else []
        return _Emit(self, place, roots, terms, rows, columns, reduces, inner).program()

    def _pooling(
        self, pooling: Term, place: int, roots: dict[str, Term], terms: list[Term]
    ) -> Program:
        """Outputs are its rows, and the dimensions that its windows go along its columns."""
        (source,) = _arguments(pooling)
        assert pooling.window is not None
        spatial = source.axes[-len(pooling.window.kernel) :]
        rows = [self.build.find(a) for a in _flat(pooling)]
        columns = [self.build.find(a) for group in spatial for a in group]
        if not columns or set(rows) & set(columns):
            raise Unsupported("no feature template for a pooling beside what is pooled")
        program = _Emit(self, place, roots, terms, rows, columns, True, []).program()
        sizes = (*spatial, *pooling.axes[-len(spatial) :])
        return replace(
            program,
            window=pooling.window,
            spatial=tuple(map(self.build.expression, sizes)),
            column_count=math.prod(pooling.window.kernel),
        )

    def _turned(self, order: list[int]) -> Callable[[Term], tuple[int, int] | None]:
        """Of a load: (dimensions of the batch, dimensions of the columns), where it is a batch of
        transposed matrices; None of anything else.
        """

        def turned(term: Term) -> tuple[int, int] | None:
            own = [self.build.find(a) for a in _flat(term)]
            plain = term.op == "load" and term.part is None
            if not (plain or term in self.workspaces) or own == order or len(own) != len(order):
                return None
            batch = next(i for i, (a, b) in enumerate(zip(own, order, strict=True)) if a != b)
            count = len(order) - order.index(own[batch])
            if own != order[:batch] + order[-count:] + order[batch:-count]:
                return None
            return batch, count

        return turned

    def _order(self, roots: dict[str, Term], terms: list[Term]) -> list[int]:
        """Of all dimensions: the results' where one has all of them, since it is written in it."""
        widest = max((*roots.values(), *terms), key=lambda t: len(_flat(t)))
        order = [self.build.find(a) for a in _flat(widest)]
        union = {self.build.find(a) for t in terms for a in _flat(t)}
        if len(set(order)) != len(order) or union != set(order):
            raise Unsupported("no feature template for outer products or repeated dimensions")
        return order

    def _along(self, order: list[int], place: int, scans: bool) -> list[int]:
        """The dimensions that a phase reduces or scans."""
        along = set(self.reduced[place])
        start = next((i for i, a in enumerate(order) if a in along), 0)
        found = order[start : start + len(along)]
        if set(found) != along:
            raise Unsupported("no feature template for reductions along dimensions apart")
        if scans and start + len(along) != len(order):
            raise Unsupported("no feature template for scans along a leading dimension")
        return found

    def _columns(self, order: list[int], terms: list[Term]) -> list[int]:
        """Without a reduction: as many of the last dimensions as every operand has, or has not."""
        loads = [t for t in terms if t.op == "load" or t in self.workspaces]
        start = 0
        for load in loads:
            held = {self.build.find(a) for a in _flat(load)}
            if not held:
                continue
            run = len(order)
            inside = order[-1] in held if order else False
            while run > 0 and (order[run - 1] in held) == inside:
                run -= 1
            start = max(start, run)
            if load.sliced is not None:
                start = max(start, order.index(self.build.find(load.sliced)))
        return order[start:]


class _Emit:
    """One program's operands, values and results."""

    def __init__(
        self,
        split: _Split,
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
        held = {self.build.find(a) for a in _flat(term)}
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
        arguments = [self.values[a] for a in _arguments(term)]
        if term.op in ("same", "apart") and arguments[0].element == element:
            return arguments[0]
        along = set(self.split.atoms(term)) if term.op == "pick" else set(self.columns)
        if along != set(self.columns) or (term.op == "pick" and self.inner):
            raise Unsupported("no feature template for aten.gather along a leading dimension")
        behind = {self.split.phase[a] for a in _arguments(term)}
        if term.op == "pick" and self.place in self.split.scans & behind:
            raise Unsupported("no feature template for aten.gather from a scan")
        if term.op.startswith("scan.") and not arguments[0].element:
            raise Unsupported("no feature template for a scan of a broadcast tensor")
        if term.window is not None and not arguments[0].element:
            raise Unsupported("no feature template for a pooling of a broadcast tensor")
        op = term.op.replace("window.", "reduce.")
        depth = max((a.depth for a in arguments), default=0) + op.startswith("reduce.")
        literals = tuple(a for a in term.args if not isinstance(a, Term | str))
        args = tuple(a.name for a in arguments) + literals
        return Value(name, op, args, term.kind, element, depth)

    def operand(self, term: Term, held: set[int]) -> Operand:
        name = f"p{len(self.operands)}"
        own = [self.build.find(a) for a in _flat(term)]
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
            source, dtype = self.split.workspaces[term], _workspace_dtype(term)
        part = term.part or (0, 1)
        return Operand(name, source, dtype, row, bool(inside), div, mod, part, turned)

    def result(self, name: str, term: Term) -> Result:
        held = {self.build.find(a) for a in _flat(term)}
        element = bool(held & set(self.columns))
        if held != {*self.rows, *(self.columns if element else ())}:
            raise Unsupported("no feature template for a result that is smaller than its program")
        turned = element and self.reduces and bool(self.inner)
        batch = len(self.rows) - len(self.inner)
        wanted = self.rows + self.columns * element
        wanted = self.rows[:batch] + self.columns + self.inner if turned else wanted
        if [self.build.find(a) for a in _flat(term)] != wanted:
            raise Unsupported("no feature template for a transposed result")
        shape = tuple(self.build.expression(g) for g in term.axes)
        if name not in self.split.outputs:
            dtype = _workspace_dtype(term)
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


def _workspace_dtype(term: Term) -> str:
    return {"float": "float32", "int": "int64", "bool": "bool"}[term.kind]


def _contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= max(size, 1)
    return True


def _names(result: Arg) -> list[str]:
    if isinstance(result, Ref):
        return [result.node]
    return [name for r in result for name in _names(r)] if isinstance(result, tuple) else []
