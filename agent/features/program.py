"""What a kernel computes, for the code generators: programs over (row, column) whose reductions all
run along the columns.

A program's values are either *elements* (one per row and column) or *row values*. `depth` counts
the reductions a value waits for: softmax's maximum has depth 1, its sum 2, its result 2. A
reference with reductions over different dimensions (cross-entropy: classes, then the batch) becomes
several programs joined by workspaces.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sandbox.graph import Arg

Literal = float | int | bool


@dataclass(frozen=True)
class Steps:
    """How windows go along one dimension of what is pooled."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def lost(self) -> int:
        """So many windows fewer than elements there would be at stride 1."""
        return self.dilation * (self.kernel - 1) + 1 - 2 * self.padding

    def outputs(self, size: int) -> int:
        """Windows along a dimension of this size, none of which is cut off."""
        return (size - self.lost) // self.stride + 1

    def text(self, size: str) -> str:
        """The same in Python, for a size that is known by the call."""
        return f"(({size} - {self.lost}) // {self.stride} + 1)"


Window = tuple[Steps, ...]
"""What an output of a pooling is reduced from: how it lies along each of the last dimensions."""


@dataclass(frozen=True)
class Operand:
    """A tensor that a program reads; addressed as row offset + part offset + column."""

    name: str
    source: str
    """Python of the candidate: `x0`, `self.weight`, `w3` (a workspace of an earlier program)."""
    dtype: str
    row: str
    """`none`, `full`, or `cyclic`: (row / div) % mod."""
    column: bool
    div: str = "1"
    mod: str = "1"
    part: tuple[int, int] = (0, 1)
    """The k-th of n equal parts of each row."""
    turned: bool = False
    """Its columns come before the last of its rows: see `Program.inner`."""


@dataclass(frozen=True)
class Value:
    """One scalar of the program, by name; `args` are names of values or literals."""

    name: str
    op: str
    args: tuple[str | Literal, ...]
    kind: str
    element: bool
    depth: int
    statement: str = field(default="", compare=False)
    """Of the reference, as a Node's: what it is part of."""


@dataclass(frozen=True)
class Result:
    """A tensor that a program writes: an output of forward or a workspace."""

    name: str
    value: str
    dtype: str
    element: bool
    shape: tuple[str, ...]
    turned: bool = False
    """As of an Operand."""


@dataclass(frozen=True)
class Program:
    """One pass over (rows, columns); the sizes at the traced shape do not take part in equality."""

    operands: tuple[Operand, ...]
    values: tuple[Value, ...]
    results: tuple[Result, ...]
    rows: str
    columns: str
    reduces: bool
    scalars: tuple[str, ...] = ()
    """Python expressions passed as float arguments s0, s1, ..."""
    inner: str = ""
    """Rows of one matrix of a batch, where operands are transposed in it, as they all are where a
    reduction runs along a dimension that is not the last; else empty."""
    window: Window = ()
    """Of a pooling, whose rows are outputs and whose columns are what a window is taken of."""
    spatial: tuple[str, ...] = ()
    """Python of the sizes along its dimensions, first what is pooled, then what comes of it."""
    row_count: int = field(default=1, compare=False)
    column_count: int = field(default=1, compare=False)

    def value(self, name: str) -> Value:
        return next(v for v in self.values if v.name == name)

    def numbered(self) -> Program:
        """The same with values and results named by their order: programs that compute alike are
        equal so far, whatever stands before them.
        """
        names = {value.name: f"v{i}" for i, value in enumerate(self.values)}
        values = tuple(
            replace(
                value,
                name=names[value.name],
                statement="",
                args=tuple(names.get(a, a) if isinstance(a, str) else a for a in value.args),
            )
            for value in self.values
        )
        results = tuple(
            replace(result, name=f"r{i}", value=names[result.value])
            for i, result in enumerate(self.results)
        )
        return replace(self, values=values, results=results)

    @property
    def strided(self) -> bool:
        """Whether it reduces along a dimension whose elements lie `inner` apart."""
        return self.reduces and bool(self.inner)

    @property
    def scan(self) -> Value | None:
        """The prefix sum along the columns, of which a program has one at most."""
        return next((v for v in self.values if v.op.startswith("scan.")), None)

    @property
    def passes(self) -> int:
        """Reduction sweeps; element results may need one sweep more."""
        return max((v.depth for v in self.values if v.op.startswith("reduce.")), default=0)


@dataclass(frozen=True)
class Made:
    """A tensor that the library computes: the local variable that holds it, its Python, and the
    place of the first program that may read it.
    """

    name: str
    text: str
    before: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything a code generator needs to know of a reference."""

    programs: tuple[Program, ...]
    inputs: int
    """Positional arguments of forward."""
    result: Arg
    """What forward returns, each Ref naming a Result."""
    products: tuple[Made, ...] = ()
    effects: tuple[str, ...] = ()
    """Python that leaves in buffers what a call leaves there, once the programs are launched."""

    @property
    def main(self) -> int:
        """The program that touches the most elements: the one whose features are searched."""
        sizes = [p.row_count * p.column_count for p in self.programs]
        return sizes.index(max(sizes))
