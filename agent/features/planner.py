"""Terms -> programs: which values each one computes, what it reads, and in what order of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent.features.aten import lower
from agent.features.composing import Composer
from agent.features.lower import Effect, Lowered, product_name
from agent.features.program import Made, Plan, Program
from agent.features.terms import Term, Unsupported
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
    split = Split(lowered)
    inputs = sum(n.op == "input" for n in lowered.placeholders) + len(graph.scalars)
    programs = split.programs()
    return Plan(programs, inputs, lowered.result, split.made(), split.effects(lowered.effects))


class Split:
    """Assigns every reduction to a phase (one program each) by the atoms it reduces."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered, self.build = lowered, lowered.builder
        self.phase: dict[Term, int] = {}
        """-1 of what any program may compute that comes late enough."""
        self.floor: dict[Term, int] = {}
        self.reduced: list[tuple[int, ...]] = []
        self.products = {product.name: product for product in lowered.products}
        self.places: dict[str, int] = {}
        """Phases before which products are made; -1 where before all."""
        self.scans: set[int] = set()
        """Phases that are a scan and what follows it, reductions excepted."""
        for term in self.build.terms:
            self.phase[term] = self._phase(term)
        self.outputs = {f"out_{name}": lowered.values[name] for name in _names(lowered.result)}
        if not self.outputs:
            raise Unsupported("no feature template for a reference that returns no tensor")
        self.workspaces: dict[Term, str] = {}
        self.dtypes: dict[Term, str] = {}
        """Of workspaces that a product takes."""
        self.used: list[int] = []
        """Phases that have a program."""

    def atoms(self, term: Term) -> tuple[int, ...]:
        """What a reduction or pick runs along."""
        marks = [a for a in term.args if isinstance(a, str) and a.startswith("@")]
        return tuple(sorted({self.build.find(int(a[1:])) for a in marks}))

    def _phase(self, term: Term) -> int:
        before = max((self.phase[a] for a in term.arguments), default=-1)
        floor = max((self.floor[a] for a in term.arguments), default=self._floor(term))
        self.floor[term] = floor
        if before >= 0:
            before = max(before, floor)
        if term.op == "apart":
            return self._behind(max(before, floor))
        if term.window or (term.op == "kept" and before < 0):
            return self._alone(term)
        scans = term.op.startswith("scan.")
        if not (scans or term.op.startswith("reduce.")):
            return before
        along, first = self.atoms(term), max(before, floor, 0)
        if scans:
            self.scans.add(len(self.reduced))
            first = len(self.reduced)
        for place in range(first, len(self.reduced)):
            if self.reduced[place] == along and place not in self.scans:
                return place
        self.reduced.append(along)
        return len(self.reduced) - 1

    def _alone(self, term: Term) -> int:
        """A phase of its own, after all others: no other reduces along it."""
        self.reduced.append((-1 - term.index,))
        return len(self.reduced) - 1

    def _floor(self, term: Term) -> int:
        """The first phase that may have it: where it is a product, once that is made."""
        name = product_name(self.lowered.nodes[str(term.args[0])]) if term.op == "load" else ""
        product = self.products.get(name)
        if product is None:
            return -1
        if product.name not in self.places:
            after = max((self.places[name] for name in product.after), default=-1)
            self.places[product.name] = self._alone(term) if product.inputs else after
        return self.places[product.name]

    def _kept(self, node: str) -> Term:
        """What a product takes of this node: a value that others may read as well, unless it needs
        a program of its own.
        """
        kept = self.lowered.values[f"kept {node}"]
        (value,) = kept.arguments
        return value if self.phase[value] >= 0 else kept

    def made(self) -> tuple[Made, ...]:
        """Products, once there are programs."""
        return tuple(
            Made(
                product.name,
                product.text.format(
                    *(self.workspaces[self._kept(name)] for name in product.inputs)
                ),
                sum(place < self.places.get(product.name, -1) for place in self.used),
            )
            for product in self.lowered.products
        )

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
            roots[max(self.phase[term], self.floor[term], 0)][name] = term
        for effect in filter(None, (effect.value for effect in self.lowered.effects)):
            self._keep(self.lowered.values[effect], roots)
        for node in (name for product in self.lowered.products for name in product.inputs):
            term = self._kept(node)
            self._keep(term, roots)
            self.dtypes[term] = self.lowered.nodes[node].meta.dtype
        for place in reversed(range(count)):
            for term in self._crossing(roots[place], place):
                self._keep(term, roots)
        self.used = [place for place in range(count) if roots[place]]
        return tuple(self._program(place, roots[place]) for place in self.used)

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
                    stack.extend(term.arguments)
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
        return Composer(self, place, roots, terms, rows, columns, reduces, inner).program()

    def _pooling(
        self, pooling: Term, place: int, roots: dict[str, Term], terms: list[Term]
    ) -> Program:
        """Outputs are its rows, and the dimensions that its windows go along its columns."""
        (source,) = pooling.arguments
        spatial = source.axes[-len(pooling.window) :]
        rows = [self.build.find(a) for a in pooling.flat]
        columns = [self.build.find(a) for group in spatial for a in group]
        if not columns or set(rows) & set(columns):
            raise Unsupported("no feature template for a pooling beside what is pooled")
        program = Composer(self, place, roots, terms, rows, columns, True, []).program()
        sizes = (*spatial, *pooling.axes[-len(spatial) :])
        return replace(
            program,
            window=pooling.window,
            spatial=tuple(map(self.build.expression, sizes)),
            column_count=math.prod(steps.kernel for steps in pooling.window),
        )

    def _turned(self, order: list[int]) -> Callable[[Term], tuple[int, int] | None]:
        """Of a load: (dimensions of the batch, dimensions of the columns), where it is a batch of
        transposed matrices; None of anything else.
        """

        def turned(term: Term) -> tuple[int, int] | None:
            own = [self.build.find(a) for a in term.flat]
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
        widest = max((*roots.values(), *terms), key=lambda t: len(t.flat))
        order = [self.build.find(a) for a in widest.flat]
        union = {self.build.find(a) for t in terms for a in t.flat}
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
            held = {self.build.find(a) for a in load.flat}
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


def _names(result: Arg) -> list[str]:
    if isinstance(result, Ref):
        return [result.node]
    return [name for r in result for name in _names(r)] if isinstance(result, tuple) else []
