"""A tokenizer for kernel sources: blocks of lines that repeat are tokens of their own.

Most of a kernel is the same in every kernel. Lines that a fair share of the texts has are joined
with those that mostly follow them, but for the fences of a code block, and each such block is one
token, so that a policy spends its tokens where kernels differ. The rest is byte-level BPE, cut at
digits and around the names of values (v12): what is done with a value stays apart from which one it
is. A statement of the reference is the same tokens where it is asked for, listed and quoted, so
that it can be copied, and one token where replies often list it. Decoding gives back every text
exactly.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, END, START = "<|pad|>", "<|end|>", "<|start|>"
FEWEST = 259
"""Bytes and special tokens."""
SHARE = 0.02
"""Of the texts that must hold a line for it to be part of a block: rarer ones differ by what is to
be learned."""
TOGETHER = 0.8
"""Of the places of the rarer of two blocks at which they are neighbours, for them to be joined."""
SHORTEST = 8
"""Characters of a block: shorter ones end other lines as well."""
FENCE = "```"
"""Never amid a block: code is the same tokens after whatever it follows, shown or written."""
STATEMENT = r"(?<=\d: |^ {8})\S[^\n]*\n?|\b\d+: "
"""In `forward`, and behind its number in a list or a comment. With its newline, so that one token
is between two of them wherever they stand."""
LISTED = 0.002
"""Of the texts that must list a statement for it to be a token of its own: a toy policy then has
all of 262 long lists right after as many batches as it has 96 % for otherwise
(benchmarks/results/cpu_lists.json)."""
VALUES = r"\b(?:v|in)\d+|\d(?!: )"
"""Their names, and digits but the last of a statement's number."""
NUMBERED = re.compile(r"^ *(?:// )?(?:\d+: )?(.*\n)", re.DOTALL)
"""A line, and what is left of it without indentation and number."""
LIST = re.compile(r"\d+: ")
"""How a line of a list of statements begins."""
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
Block = str
"""Whole lines, each with its newline."""


def new_tokenizer(
    texts: Iterable[str], vocabulary: int, asked: Iterable[str] = ()
) -> PreTrainedTokenizerFast:
    """Of at most `vocabulary` tokens, half of them blocks at most. Figures in what is `asked` will
    differ another day, so that its lines with digits count only as far as `texts` have them.
    """
    fixed, varying = list(texts), list(asked)
    stated = listed(fixed)
    most = (vocabulary - FEWEST) // 2
    blocks = stated[:most] + repeated_blocks(fixed, max(0, most - len(stated)), varying)
    known = fixed + varying
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(STATEMENT), "isolated"),
            pre_tokenizers.Split(Regex(VALUES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(blocks),
        min_frequency=max(2, len(known) // 100),
        special_tokens=[PAD, END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Only of what blocks leave: else their insides would fill the vocabulary.
    bpe.train_from_iterator(_between(known, blocks), trainer)
    # Not special: they stay in decoded text. Their newline keeps the decoder from remapping them.
    bpe.add_tokens([AddedToken(block, normalized=False, special=False) for block in blocks])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=PAD, eos_token=END, additional_special_tokens=[START]
    )
    fast.chat_template = TEMPLATE
    return fast


def listed(texts: Sequence[str]) -> list[Block]:
    """Statements that many of the texts list, the most frequent first."""
    lists = Counter(
        statement
        for text in texts
        for statement in {_bare(line) for line in _lines(text) if LIST.match(line)}
    )
    enough = max(2, math.ceil(LISTED * len(texts)))
    # Of equally many in one order: a seed's tokenizer is the same in every process.
    return sorted((s for s, n in lists.items() if n >= enough), key=lambda s: (-lists[s], s))


def repeated_blocks(texts: Sequence[str], most: int, asked: Sequence[str] = ()) -> list[Block]:
    """Those that save the most characters, best first."""
    counted = Counter([*texts, *asked])
    enough = max(2, math.ceil(SHARE * (len(texts) + len(asked))))
    held: Counter[Block] = Counter()
    for text in texts:
        held.update(set(_lines(text)))
    for text in asked:
        held.update(line for line in set(_lines(text)) if not any(map(str.isdigit, line)))
    stated = {_bare(line) for line in held if LIST.match(line)}
    common = {
        line
        for line, n in held.items()
        if n >= enough and line.endswith("\n") and _bare(line) not in stated
    }
    rows = [
        (_joined_apart([line if line in common else None for line in _lines(text)]), times)
        for text, times in counted.items()
    ]
    while joins := _joins(rows, enough):
        rows = [([_join(run, joins) for run in runs], times) for runs, times in rows]
    saved: Counter[Block] = Counter()
    for runs, times in rows:
        for block in (block for run in runs for block in run):
            saved[block] += times * len(block)
    long = [(n, b) for b, n in saved.items() if len(b.strip()) >= SHORTEST]
    return [block for n, block in sorted(long, reverse=True)[:most] if n >= enough * len(block)]


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _bare(line: str) -> str:
    """Without indentation and number."""
    found = NUMBERED.match(line)
    return found[1] if found else line


def _joined_apart(lines: Sequence[str | None]) -> list[list[Block]]:
    """Runs of common lines, cut where there is another one and around a fence."""
    runs: list[list[Block]] = [[]]
    for line in lines:
        if line is None:
            runs.append([])
        elif line.startswith(FENCE):
            runs += [[line], []]
        else:
            runs[-1].append(line)
    return [run for run in runs if run]


def _joins(rows: Sequence[tuple[list[list[Block]], int]], enough: int) -> set[tuple[Block, Block]]:
    """Pairs of neighbours that are mostly found together."""
    single: Counter[Block] = Counter()
    pairs: Counter[tuple[Block, Block]] = Counter()
    for runs, times in rows:
        for run in runs:
            for block in run:
                single[block] += times
            for pair in pairwise(run):
                pairs[pair] += times
    return {
        (a, b)
        for (a, b), n in pairs.items()
        if n >= enough and n >= TOGETHER * min(single[a], single[b])
    }


def _join(run: Sequence[Block], joins: set[tuple[Block, Block]]) -> list[Block]:
    joined: list[Block] = []
    place = 0
    while place < len(run):
        if tuple(run[place : place + 2]) in joins:
            joined.append(run[place] + run[place + 1])
            place += 2
        else:
            joined.append(run[place])
            place += 1
    return joined


def _between(texts: Sequence[str], blocks: Sequence[Block]) -> Iterable[str]:
    """What no block covers, longest blocks first, as the tokenizer will cut it."""
    longest = sorted(blocks, key=len, reverse=True)
    for text in texts:
        pieces = [text]
        for block in longest:
            if block in text:
                pieces = [part for piece in pieces for part in piece.split(block)]
        yield from (piece for piece in pieces if piece)
