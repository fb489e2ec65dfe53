"""Variables of CUDA and C++ text that outlive a call, found without a compiler.

Told by keywords (`__device__`, `__managed__`, `static`, `thread_local`) and by their place outside
of every function. What cannot be told apart from a variable counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DIRECTIVES = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
STRINGS = re.compile(r'"(?:\\.|[^"\\\n])*"')
ATTRIBUTES = re.compile(
    r"\b(?:__align__|alignas|__launch_bounds__|__attribute__|__maxnreg__|__cluster_dims__)\s*\("
)
LASTING = re.compile(r"\b(?:__device__|__managed__|static|thread_local)\b")
CODE = re.compile(r"__global__|__device__|extern\s*0|\btorch::|\bat::|^[ \t]*#[ \t]*include", re.M)
OPENING = re.compile(r"\s*(?:inline\s+)?namespace\b[\w\s:]*\{|\s*extern\s*0\s*\{")
"""Blocks whose declarations are outside of functions; strings are 0 by then."""
OTHER = re.compile(
    r"\s*(?:using|typedef|template|struct|class|enum|union|namespace|friend|static_assert|return|asm"
    r"|[A-Z][A-Z0-9_]*\s*\()"
)
"""Statements that declare no variable; names in capitals are macros."""
DECLARATION = re.compile(r"\s*(?!else\b|goto\b)[A-Za-z_][\w:<>,*&\[\]\s]*[\s*&>\]]\w[\w\[\]\s,*]*$")
FUNCTION_END = re.compile(r"\s*(?:\{|const\b|noexcept\b|override\b|->|:(?!:)|__)")
PARAMETER = re.compile(
    r"\s*(?:(?:const|unsigned|signed|void|bool|char|short|int|long|float|double|auto|size_t)\b"
    r"|[\w:<>]+\s*[*&]|[A-Za-z_][\w:<>]*\s+\w)"
)
COPIED = "MemcpyToSymbol"
"""`__constant__` memory that the host writes."""


def has_statics(text: str, device: str) -> bool:
    """Whether it declares a variable that outlives a call and is not constant; on the CPU beside
    those of a thread.
    """
    if COPIED in text:
        return True
    plain = DIRECTIVES.sub(" ", COMMENTS.sub(" ", text))
    is_code = bool(CODE.search(STRINGS.sub("0", COMMENTS.sub(" ", text))))
    plain = without_groups(STRINGS.sub("0", plain))
    found = [plain[match.start() :] for match in LASTING.finditer(plain)]
    if is_code:
        found += list(outside(plain))
    return any(_varies(rest, own=device == "cpu") for rest in found)


def without_groups(text: str) -> str:
    """Without attributes, and with nothing between square brackets."""
    while (match := ATTRIBUTES.search(text)) is not None:
        text = text[: match.start()] + " " + text[closing(text, match.end() - 1) + 1 :]
    while re.search(r"\[[^\[\]]+\]", text):
        text = re.sub(r"\[[^\[\]]+\]", "[]", text)
    return text


def closing(text: str, place: int) -> int:
    """Where the bracket at `place` is closed; the text's end where it is not."""
    pairs = {"(": ")", "{": "}"}
    depth = 0
    for i in range(place, len(text)):
        if text[i] == text[place]:
            depth += 1
        elif text[i] == pairs[text[place]]:
            depth -= 1
            if depth == 0:
                return i
    return len(text)


def outside(text: str) -> Iterator[str]:
    """Statements that stand in no function, class or initialiser, each with what follows it."""
    begin = place = 0
    while place < len(text):
        if OPENING.match(text, begin):
            begin = place = text.index("{", begin) + 1
            continue
        character = text[place]
        if character == "(":
            place = closing(text, place)
        elif character == "{":
            yield text[begin:]
            begin = place = closing(text, place) + 1
            continue
        elif character in ";}":
            yield text[begin:]
            begin = place + 1
        place += 1


def _varies(rest: str, *, own: bool) -> bool:
    """Whether the statement that the text begins with declares such a variable."""
    end = re.search(r"[;{}=(]|$", rest)
    declared = rest[: end.start()] if end else rest
    mark = rest[end.start() : end.start() + 1] if end else ""
    if OTHER.match(rest) or (own and "thread_local" in declared) or _fixed(declared):
        return False
    if "operator" in declared or mark == "}":
        return False
    if mark == "(":
        close = closing(rest, len(declared))
        inner, after = rest[len(declared) + 1 : close], rest[close + 1 :]
        return not (FUNCTION_END.match(after) or _is_parameters(inner))
    words = LASTING.sub(" ", declared)
    return bool(DECLARATION.match(words.rstrip() or "0"))


def _fixed(declared: str) -> bool:
    """Whether the object itself is constant, and holds no pointer."""
    if re.search(r"\bconstexpr\b|__constant__", declared):
        return True
    return bool(re.search(r"\bconst\b", declared)) and not re.search(r"[*<&]", declared)


def _is_parameters(inner: str) -> bool:
    """Of a prototype, as against what a variable is constructed from."""
    return not inner.strip() or all(map(PARAMETER.match, inner.split(",")[:1]))
