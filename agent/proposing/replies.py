"""From a model's reply to the candidate's source, or to a reason the model can act on.

Pure text: nothing is parsed as Python or executed here, so hostile code cannot reach the loop
through it. A block that is not valid Python is the sandbox's to refuse: its error says more.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sandbox.static.scan import SOURCE_LIMIT_BYTES

DEFINES_MODEL_NEW = re.compile(r"^(class[ \t]+ModelNew\b|ModelNew[ \t]*=)", re.MULTILINE)
FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})(?P<rest>[^`]*)")
STARTS_LIKE_PYTHON = re.compile(r'(import|from|class|def)[ \t]|#|@|r?"""')


@dataclass(frozen=True)
class Extraction:
    """Either a source, or the reason why there is none."""

    source: str | None
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.source is None) != bool(self.reason):
            raise ValueError("an extraction has a source or a reason, not both and not neither")


@dataclass(frozen=True)
class Block:
    """The text between two fences; `closed` is False where the reply ended first."""

    text: str
    closed: bool


def extract(text: str, finish_reason: str | None = None) -> Extraction:
    """The last complete fenced block that defines ModelNew, whatever its language tag.

    A reply that is nothing but code, without fences, is taken whole. Half a file is never returned:
    a block that is not closed, or bare code cut off at the token limit, gives a reason instead; so
    does a file that the sandbox would refuse for its size, lest its repair shows all of it.
    """
    cut_off = finish_reason == "length"
    answer = without_thinking(text.replace("\r\n", "\n"))
    if not answer.strip():
        return Extraction(None, _no_answer(text, cut_off))
    blocks = fenced_blocks(answer)
    for block in reversed(blocks):
        if block.closed and defines_model_new(block.text):
            return _taken(block.text)
    if not blocks and defines_model_new(answer) and _is_bare_code(answer) and not cut_off:
        return _taken(answer.strip("\n") + "\n")
    return Extraction(None, _no_block(blocks, cut_off))


def defines_model_new(source: str) -> bool:
    """Whether a line at the left margin defines ModelNew."""
    return DEFINES_MODEL_NEW.search(source) is not None


def without_thinking(text: str) -> str:
    """The reply without its reasoning.

    A chat template may have opened the block in the prompt, so that only its end is in the reply;
    and a reply cut off while reasoning has only its beginning.
    """
    # Beginnings without an end are left out: from each, the search would read all that follows.
    ended, end, rest = text.rpartition("</think>")
    text = re.sub(r"<think>.*?</think>", "", ended + end, flags=re.DOTALL) + rest
    text = text.rpartition("</think>")[2]
    return text.partition("<think>")[0]


def fenced_blocks(text: str) -> list[Block]:
    """Markdown's fenced blocks, in order; a fence may be indented (in a list), its code with it."""
    blocks: list[Block] = []
    lines: list[str] = []
    opened: re.Match[str] | None = None
    for line in text.split("\n"):
        fence = FENCE.fullmatch(line)
        if opened is None:
            opened, lines = fence, []
        elif fence is not None and _closes(fence, opened):
            blocks.append(Block(_text(lines), closed=True))
            opened = None
        elif fence is not None and fence["marks"] == opened["marks"]:
            # Only an opening fence has a tag, so the block before it was never closed.
            blocks.append(Block(_text(lines), closed=False))
            opened, lines = fence, []
        else:
            lines.append(_dedented(line, opened["indent"]))
    if opened is not None:
        blocks.append(Block(_text(lines), closed=False))
    return blocks


def _closes(fence: re.Match[str], opened: re.Match[str]) -> bool:
    """As in CommonMark: bare, of the same character, at least as long."""
    return not fence["rest"].strip() and fence["marks"].startswith(opened["marks"])


def _dedented(line: str, indent: str) -> str:
    """Without the fence's own indentation; a line indented less loses what it has."""
    own = line[: len(line) - len(line.lstrip(" \t"))]
    return line[min(len(own), len(indent)) :]


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _taken(source: str) -> Extraction:
    size = len(json.dumps(source))  # As the sandbox counts.
    if size <= SOURCE_LIMIT_BYTES:
        return Extraction(source)
    return Extraction(
        None,
        f"the file has {size} bytes, and more than {SOURCE_LIMIT_BYTES} are refused; "
        "write a kernel of a few hundred lines",
    )


def _is_bare_code(answer: str) -> bool:
    return STARTS_LIKE_PYTHON.match(answer.lstrip("\n")) is not None


def _no_answer(text: str, cut_off: bool) -> str:
    if not text.strip() and not cut_off:
        return "the reply is empty; answer with one ```python block that holds the complete file"
    return (
        "the reply ended before its answer, while still reasoning; "
        "reason less and answer with one ```python block that holds the complete file"
    )


def _no_block(blocks: list[Block], cut_off: bool) -> str:
    if cut_off:
        return (
            "the reply was cut off at the token limit before its code was complete; "
            "write less prose and a shorter file"
        )
    if not blocks:
        return "the reply has no fenced code block; put the complete file in one ```python block"
    if not blocks[-1].closed:
        return (
            "the last code block is not closed, so the file may be incomplete; "
            "end the ```python block with a line of ```"
        )
    return (
        f"none of the reply's {len(blocks)} code block(s) defines ModelNew at top level; "
        "put the complete file, kernel source and class ModelNew, in one ```python block"
    )
