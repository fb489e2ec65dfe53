"""A feature proposer's kernel as a policy can learn to write it: the same program in plainer text.

What cannot be told from the task goes: comments but for the statements of the reference that it
quotes, the hash in its build's name, the numbers that values and results got while the reference
was lowered. Constants stand where they are used, as in the reference: lifted out of the loops and
numbered, they would have to be foreseen.
What is loaded from an input has that input's number, other values theirs as they come. What only
the reference needs goes too: sizes and imports that nothing uses any more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from agent.features.assemble import MADE
from agent.features.emit import quoted

CONSTANT = re.compile(
    r"^[ ]*const float (v\d+) = (-?\d+(?:\.\d*)?(?:e[-+]?\d+)?f|\(float\)columns);\n", re.MULTILINE
)
LOADED = re.compile(
    r"load<\w+, V>\(p(\d+)_row \+ c, v(\d+)_"
    r"|const [a-z ]+ v(\d+) = p(\d+)(?:_row\[c(?: \* inner)?\]|\[row\]);"
)
"""On a GPU, or on the CPU, where input and value have changed places."""
COMMENT = re.compile(r"^ *// (?!\d+: ).*\n", re.MULTILINE)
"""Any but a statement of the reference."""
QUOTE = re.compile(r"^( *// )(\d+)(?:: .*)?$", re.MULTILINE)
"""Such a statement, or what is left of it: its number."""
BUILD_NAME = re.compile(r'(name=")features_[0-9a-f]{16}(")')
VALUE = re.compile(r"\bv(\d+)(?=_|\b)")
WORKSPACE = re.compile(r"\bw(\d+)(?=_|\b)")
RESULT = re.compile(r"\bout_(\w+?)(?=(?:_(?:row|vector))?\b)")


def plain(source: str) -> str:
    """Other sources than the feature proposer's are returned as they are."""
    if MADE not in source:
        return source
    said = {statement.partition(":")[0]: statement for statement in quoted(source)}
    text = COMMENT.sub("", BUILD_NAME.sub(r"\1kernel\2", source)).strip("\n") + "\n"
    text = QUOTE.sub(r"\1\2", text)  # What it quotes has names of its own.
    text = _after_inputs(_inlined(text))
    for pattern, name in ((VALUE, "v"), (WORKSPACE, "w"), (RESULT, "out")):
        text = _renumbered(text, pattern, name)
    return QUOTE.sub(lambda m: m[1] + said[m[2]], _without_unused(text))


def _inlined(text: str) -> str:
    """Constants where they are used; as it was, where a name means more than one constant."""
    values = set(CONSTANT.findall(text))
    shorter = CONSTANT.sub("", text)
    names = [name for name, _ in values]
    if len(set(names)) < len(names) or any(re.search(rf"\b{n}(_| =)", shorter) for n in names):
        return text
    for name, value in values:
        bare = value[0].isdigit()
        shorter = re.sub(rf"\b{name}\b", value if bare else f"({value})", shorter)
    return shorter


def _after_inputs(text: str) -> str:
    """Values loaded from p1 are called in1, where they are all that is loaded from there."""
    found = {(m[1] or m[4], m[2] or m[3]) for m in LOADED.finditer(text)}
    inputs, values = ([pair[i] for pair in found] for i in (0, 1))
    for number, value in found:
        if inputs.count(number) == values.count(value) == 1:
            text = re.sub(rf"\bv{value}(?=_|\b)", f"in{number}", text)
    return text


def _renumbered(text: str, pattern: re.Pattern[str], name: str) -> str:
    """Names by the order in which they first appear."""
    numbers: dict[str, int] = {}
    return pattern.sub(lambda m: f"{name}{numbers.setdefault(m[1], len(numbers))}", text)


def _without_unused(text: str) -> str:
    """Less the imports and literals of the module that no other statement names."""
    body = ast.parse(text).body
    used = {n.id for n in ast.walk(ast.Module(body, [])) if _read(n) and isinstance(n, ast.Name)}
    dropped = {
        line
        for statement in body
        if (bound := list(_bound(statement))) and not used & set(bound)
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }
    lines = text.splitlines(keepends=True)
    return "".join(line for number, line in enumerate(lines, 1) if number not in dropped)


def _read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """What an import or the assignment of a literal binds; nothing of other statements."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((a.asname or a.name).partition(".")[0] for a in statement.names)
    elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
        yield from (t.id for t in statement.targets if isinstance(t, ast.Name))
