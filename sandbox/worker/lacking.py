"""Whether full headers could mend what a compilation with light ones (building/light.py) lacked.

    python lacking.py SAID SOURCE COMMAND...

SAID is a file with what the light compilation printed; COMMAND prints SOURCE as the full headers
make it. A name that stands there nowhere but where the source itself uses it is declared by none of
them, and to preprocess them takes a sixth of the time that compiling them does. Nor may the source
seem to declare it, where light headers may have hidden that: in a specialisation, say, that another
name's overloads choose. Ends with 1, and says what was printed, where each error is of such a name;
else with 0. Needs no package: ninja starts it once a source that did not compile.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

PASS = "\n#pass\n"
"""Between what the host and the device are given, where COMMAND prints both."""
_DIAGNOSTIC = re.compile(
    r"(?P<file>[^\s:(][^:(]*)(?:\((?P<line>\d+)\)|:(?P<place>\d+)(?::\d+)?): "
    r"(?P<kind>[a-z ]*error|warning|note|remark)(?: #[\w-]+)?: (?P<text>.*)"
)
"""nvcc's, or gcc's."""
_UNDECLARED = (
    re.compile(r'identifier "(\w+)" is undefined'),
    re.compile(r'\w+ "[^"]*" has no member "(\w+)"'),
    re.compile(r"['‘](\w+)['’] (?:was not declared in this scope|has not been declared).*"),
    re.compile(r"['‘](\w+)['’] (?:does not name a type|is not a member of ).*"),
    re.compile(r".* has no member named ['‘](\w+)['’].*"),
)
_TROUBLE = re.compile(r"\b(?:error(?! detected in the compilation)|fatal|[Kk]illed|terminated)\b")
"""In a line that is no diagnostic: of the compiler's own, which ended too early."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MARKER = re.compile(r'^#(?:line)? \d+ "([^"]*)".*$', re.MULTILINE)
_RENUMBERED = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(?:line\b|\d)", re.MULTILINE)
_BEFORE = re.compile(r"(\w+|(?<!-)>|[*&~])\s*$")
_NO_TYPES = re.compile(
    r"return|else|do|case|throw|goto|new|delete|sizeof|and|or|not|const|volatile|static|inline"
    r"|constexpr|extern|typename|co_\w+|__(?:global|device|host|shared|constant|restrict)__"
    r"|__(?:forceinline|noinline)__"
)
"""Words behind which no name is declared."""


def undeclared(said: str, source: Path) -> dict[str, list[int]]:
    """The names that a compiler missed in this source, and the line of each error; none where it
    says of anything else.
    """
    found: dict[str, list[int]] = {}
    for line in said.splitlines():
        diagnostic = _DIAGNOSTIC.fullmatch(line)
        if diagnostic is None:
            if _TROUBLE.search(line):
                return {}
        elif diagnostic["kind"].endswith("error"):
            texts = (kind.fullmatch(diagnostic["text"]) for kind in _UNDECLARED)
            name = next((match[1] for match in texts if match), None)
            if name is None or Path(diagnostic["file"]).name != source.name:
                return {}
            found.setdefault(name, []).append(int(diagnostic["line"] or diagnostic["place"]))
    return found


def may_declare(name: str, missed: Sequence[int], written: str) -> bool:
    """Whether a source without comments may itself declare what was missed in these lines: it has
    the name above the first, or, but for a line with as many errors as it has the name, behind what
    may be a type.
    """
    if _RENUMBERED.search(written):
        return True
    word = re.compile(rf"\b{name}\b")
    for number, line in enumerate(written.split("\n"), 1):
        places = [match.start() for match in word.finditer(line)]
        if places and number < min(missed):
            return True
        before = (_BEFORE.search(line[:place]) for place in places)
        typed = any(match and not _NO_TYPES.fullmatch(match[1]) for match in before)
        if typed and len(places) > missed.count(number):
            return True
    return False


def without_comments(source: str) -> str:
    """As many lines as before."""
    return _COMMENT.sub(lambda match: " " + "\n" * match.group().count("\n"), source)


def absent(names: Iterable[str], preprocessed: str, source: Path) -> bool:
    """Whether they stand nowhere in this text of a source and its headers, and in the source's own
    lines as often as they are written there: then no header declares one, no macro is called so,
    and none makes it.
    """
    parts = _MARKER.split(preprocessed)
    pieces = list(zip(["", *parts[1::2]], parts[::2], strict=True))
    own = "".join(text for file, text in pieces if file == str(source))
    written = without_comments(source.read_text(errors="replace"))
    for name in names:
        word = re.compile(rf"\b{name}\b")
        if any(file != str(source) and name in text and word.search(text) for file, text in pieces):
            return False
        if not 0 < len(word.findall(own)) == len(word.findall(written)):
            return False
    return True


def main(said: Path, source: Path, command: Sequence[str]) -> int:
    printed = said.read_text(errors="replace")
    names = undeclared(printed, source)
    written = without_comments(source.read_text(errors="replace"))
    if not names or any(may_declare(name, lines, written) for name, lines in names.items()):
        return 0
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace", check=False)
    passes = done.stdout.split(PASS)
    if done.returncode != 0 or not all(absent(names, one, source) for one in passes):
        return 0
    sys.stderr.write(printed)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
