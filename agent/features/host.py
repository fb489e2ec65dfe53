"""The Python half of a candidate: the reference's own constructor, and a forward that calls the
kernels."""

from __future__ import annotations

import ast

from agent.features.program import Operand, Plan, Program, Result
from agent.features.terms import Unsupported
from sandbox.graph import Arg, Ref

DROPPED = {"get_inputs", "get_init_inputs", "SHAPES", "DTYPE"}


def skeleton(source: str) -> str:
    """The reference without inputs and forward, `Model` renamed; ends inside ModelNew."""
    module = ast.parse(source)
    kept: list[ast.stmt] = []
    model: ast.ClassDef | None = None
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name == "Model":
            model = statement
        elif not (_defines(statement) & DROPPED or _docstring(statement) or _future(statement)):
            kept.append(statement)
    if model is None:
        raise Unsupported("no feature template for a Model that is no class of its own")
    renamed = ast.unparse(ast.Module([_Rename().visit(s) for s in kept], []))
    methods = [
        s for s in model.body if not (isinstance(s, ast.FunctionDef) and s.name == "forward")
    ]
    model.body = [s for s in methods if not _docstring(s)] or [ast.Pass()]
    model.name = "ModelNew"
    return f"{renamed}\n\n\n{ast.unparse(_Rename().visit(model))}\n"


def futures(source: str) -> str:
    """`from __future__` lines, which must come first in the candidate too."""
    kept = [s for s in ast.parse(source).body if _future(s)]
    return "".join(ast.unparse(s) + "\n" for s in kept)


def _future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


class _Rename(ast.NodeTransformer):
    """`super(Model, self)` must follow the class to its new name."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return (
            ast.copy_location(ast.Name("ModelNew", node.ctx), node) if node.id == "Model" else node
        )


def _docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _defines(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return {t.id for t in statement.targets if isinstance(t, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
        return {"SHAPES"}
    return set()


def forward(plan: Plan, calls: list[list[str]]) -> str:
    """The method's text; `calls[i]` are the lines that launch program i."""
    arguments = "".join(f", x{i}" for i in range(plan.inputs))
    lines = [f"def forward(self{arguments}):"]
    sources: dict[str, str] = {}
    for place, (program, call) in enumerate(zip(plan.programs, calls, strict=True)):
        lines += [
            f"    {made.name} = {made.text}" for made in plan.products if made.before == place
        ]
        for operand in program.operands:
            if operand.source not in sources:
                name = operand.source if operand.source.isidentifier() else f"q{len(sources)}"
                sources[operand.source] = name
                if not _workspace(operand):
                    lines.append(f"    {name} = {operand.source}.contiguous()")
        device = next(sources[o.source] for o in program.operands)
        for result in program.results:
            lines.append(f"    {result.name} = {allocation(result, device)}")
        lines.append(f"    rows, columns = {program.rows}, {program.columns}")
        lines += [f"    {line}" for line in call]
    lines += [f"    {text}" for text in plan.effects]
    lines.append(f"    return {_returned(plan.result)}")
    return "\n".join(f"    {line}" for line in lines) + "\n"


def _workspace(operand: Operand) -> bool:
    return operand.source.startswith("w")


def names(plan: Plan) -> dict[str, str]:
    """The local variable that holds each operand's tensor, as `forward` names them."""
    found: dict[str, str] = {}
    for program in plan.programs:
        for operand in program.operands:
            if operand.source not in found:
                source = operand.source
                found[source] = source if source.isidentifier() else f"q{len(found)}"
    return found


def allocation(result: Result, device: str) -> str:
    shape = ", ".join(result.shape) + ("," if len(result.shape) == 1 else "")
    return f"torch.empty(({shape}), dtype=torch.{result.dtype}, device={device}.device)"


def sizes(program: Program) -> list[str]:
    """Python of the arguments that follow the pointers."""
    found = ["rows", "columns", *([program.inner] if program.inner else []), *program.spatial]
    for operand in program.operands:
        if operand.row == "cyclic":
            found += [operand.div, operand.mod]
    return found + [f"float({s})" for s in program.scalars]


def _returned(result: Arg) -> str:
    if isinstance(result, Ref):
        return f"out_{result.node}"
    if isinstance(result, tuple):
        inner = ", ".join(_returned(r) for r in result)
        return f"({inner}{',' if len(result) == 1 else ''})"
    return repr(result)
