"""Sources as lines of HTML, highlighted; CUDA and C++ within Python strings as what they are.

Everything that is not markup of ours is escaped. The page has the colours (style.css).
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.c_like import CudaLexer
from pygments.lexers.python import PythonLexer
from pygments.token import STANDARD_TYPES, String, _TokenType

C_WORDS = ("__global__", "__device__", "#include", "#pragma", "at::Tensor", "torch::Tensor")
"""Any of them in a string of several lines makes it C++."""
CUDA_WORDS = ("__global__", "__device__", "cuda")
MOST_CHARACTERS = 64 << 10
"""Of a source that is highlighted: lexers are slow, and hostile text can make them slower."""
MOST_IN_LINE = 1000
CLASSES = {
    "k": "k",
    "kc": "k",
    "kd": "k",
    "kn": "k",
    "kr": "k",
    "kt": "t",
    "ow": "k",
    "nf": "f",
    "fm": "f",
    "nc": "f",
    "nd": "d",
    "nb": "b",
    "bp": "b",
    "cp": "d",
    "cpf": "s",
    "si": "d",
}
"""Of pygments' short names those the page tells apart; comments, strings and numbers follow."""

Token = tuple[_TokenType, str]


def highlighted(source: str) -> list[str] | None:
    """A line of HTML for each line of the source; None where it is too large to be lexed."""
    longest = max(map(len, source.split("\n")), default=0)
    if len(source) > MOST_CHARACTERS or longest > MOST_IN_LINE:
        return None
    lines: list[list[str]] = [[]]
    for kind, text in tokens(source):
        shown = class_of(kind)
        for number, part in enumerate(text.split("\n")):
            if number:
                lines.append([])
            if part:
                escaped = html.escape(part)
                lines[-1].append(f"<i class={shown}>{escaped}</i>" if shown else escaped)
    return ["".join(line) for line in lines]


def tokens(source: str) -> Iterator[Token]:
    """Of Python, with strings that hold C++ lexed as that; their texts make up the source."""
    string: list[Token] = []
    for _, kind, text in PythonLexer(stripnl=False, ensurenl=False).get_tokens_unprocessed(source):
        if kind in String:
            string.append((kind, text))
            continue
        yield from _string(string)
        string = []
        yield kind, text
    yield from _string(string)


def _string(parts: list[Token]) -> Iterator[Token]:
    text = "".join(part for _, part in parts)
    if "\n" not in text or not any(word in text for word in C_WORDS):
        yield from parts
        return
    quotes = len(text) - len(text.lstrip("rRbBuUfF\"'"))
    head, inner, tail = text[:quotes], text[quotes:-3], text[quotes:][-3:]
    yield String, head
    lexer = CudaLexer if any(word in inner for word in CUDA_WORDS) else CppLexer
    for _, kind, part in lexer(stripnl=False, ensurenl=False).get_tokens_unprocessed(inner):
        yield kind, part
    yield String, tail


def class_of(kind: _TokenType) -> str:
    """The page's class, or none."""
    name = STANDARD_TYPES.get(kind, "")
    if name in CLASSES:
        return CLASSES[name]
    return name[:1] if name[:1] in ("c", "s", "m") and name != "cp" else ""
