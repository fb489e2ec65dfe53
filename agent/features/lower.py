"""ATen graph -> terms (terms.py).

Composite operators (layer norm, softmax, gelu) become reductions and scalar operations here.
Anything else raises Unsupported with one readable line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.features.terms import Builder, Term, Unsupported, kind_of
from sandbox.graph import Arg, Graph, Node, Ref

ALIASES = {
    "input", "parameter", "buffer", "getitem", "aten.view", "aten.unsqueeze", "aten.squeeze",
    "aten.expand", "aten.permute", "aten.slice", "aten.alias", "aten.detach",
    "aten.lift_fresh_copy",
}  # fmt: skip
FIRST_ALONE = {
    "aten.native_layer_norm", "aten._native_batch_norm_legit_no_training", "aten.native_batch_norm",
    "aten.native_group_norm", "aten.max", "aten.min", "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
}  # fmt: skip
"""Operators with several outputs, whose first one is what they are lowered to."""


@dataclass(frozen=True)
class Product:
    """What the library computes: the local variable that holds it, and Python, in which `{0}` is
    the first of the values it takes that programs compute.
    """

    name: str
    text: str
    inputs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Other products that it takes."""


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
    products: tuple[Product, ...] = ()
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
        self.products: list[Product] = []
        self.effects: list[Effect] = []

    def run(self) -> Lowered:
        for node in self.graph.nodes:
            if node.op in ("input", "parameter", "buffer"):
                self.values[node.name] = self.load(node)
                self.spoken[node.name] = host_name(node)
                continue
            self.build.statement = node.statement
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
        if not isinstance(target, Ref) or self._aliases(self.nodes[target.node]):
            raise Unsupported(f"no feature template for the in-place {node.op.rsplit('.', 1)[0]}")
        for other in self.graph.nodes[: self.graph.nodes.index(node)]:
            if other.op.rsplit(".", 1)[0] in ALIASES and target in other.args:
                raise Unsupported("no feature template for a write below a view")

    def _aliases(self, node: Node) -> bool:
        """Whether it may be another tensor's memory."""
        if node.op == "getitem" and isinstance(node.args[0], Ref):
            return self.nodes[node.args[0].node].op.rsplit(".", 1)[0] not in FIRST_ALONE
        return node.op.rsplit(".", 1)[0] in ALIASES

    def term(self, arg: Arg) -> Term:
        if isinstance(arg, Ref):
            if arg.node not in self.values:
                raise Unsupported(f"no feature template for {self.nodes[arg.node].op}")
            return self.values[arg.node]
        if isinstance(arg, bool | int | float):
            return self.build.const(arg)
        raise Unsupported(f"no feature template for the argument {arg!r}")

    def sizes(self, term: Term, dims: int) -> tuple[int, ...]:
        """Its shape with so many dimensions; what it is broadcast along has size 1."""
        axes = ((),) * (dims - len(term.axes)) + term.axes
        return tuple(map(self.build.size, axes))

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
