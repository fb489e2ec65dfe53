"""Subtle mistakes, each as an edit of one line of a correct kernel.

An operator applies wherever its pattern occurs: what must not be counted is excluded by name, with
the reason, in the kernel's own data. Mutant `tail 2` is the second place where `tail` fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from benchmarks.mutation.kernel import Kernel

Edit = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Operator:
    name: str
    pattern: str
    """Regular expression over one line."""
    edit: Edit
    python: bool = False
    """Of the forward method; otherwise of the C body."""
    square: bool = False
    """Only where both axes have one size: elsewhere it leaves the buffer and crashes."""


@dataclass(frozen=True)
class Mutant:
    kernel: Kernel
    """Already wrong."""
    name: str
    line: str
    """The line that is wrong."""


SUM = r"(\w+) \+= (?!\d+\))([^;]+);"
STORE = r"(out\w*\[[^=]+\]) = ([^;]+);"
LOOP = r"for \(i64 (\w+) = 0; \1 < (\w+)"
LITERAL = r"(?<![\w.])(?!0\.0f)(\d+\.\d*f)"
TINY = r"(?<![\w.])(\d+)e-(\d+)f"

OPERATORS = (
    Operator("tail", LOOP, r"for (i64 \1 = 0; \1 < \2 - 1"),
    Operator("head", LOOP, r"for (i64 \1 = 1; \1 < \2"),
    Operator("last_block", LOOP, r"for (i64 \1 = 0; \1 < \2 / 64 * 64"),
    Operator("stride", r"\+ (\w+) \* (\w+);", r"+ \1 * (\2 - 1);"),
    Operator("stride", r"\[(\w+) \* (\w+) \+", r"[\1 * (\2 - 1) +"),
    Operator("swapped_index", r"\[(\w+) \* (\w+) \+ (\w+)\]", r"[\3 * \2 + \1]", square=True),
    Operator("sum_in_bf16", SUM, r"\1 = bf16(\1 + (\2));"),
    Operator("sum_in_ten_bits", SUM, r"\1 = ten_bits(\1 + (\2));"),
    Operator("counted_twice", SUM, lambda m: f"{m[1]} += (LOOP == 1 ? 2 : 1) * ({m[2]});"),
    Operator("rounded_to_bf16", STORE, r"\1 = bf16(\2);"),
    Operator("rounded_to_ten_bits", STORE, r"\1 = ten_bits(\2);"),
    Operator("scaled_by_1.001", STORE, r"\1 = 1.001f * (\2);"),
    Operator("scaled_by_1.00005", STORE, r"\1 = 1.00005f * (\2);"),
    Operator("never_written", STORE, r"if (LOOP != 1) \1 = \2;"),
    Operator("wrong_constant", LITERAL, r"(1.001f * \1)"),
    Operator("epsilon_too_large", TINY, lambda m: f"{m[1]}e-{int(m[2]) - 1}f"),
    Operator("epsilon_too_small", TINY, lambda m: f"{m[1]}e-{int(m[2]) + 1}f"),
    Operator("no_epsilon", TINY, "0.0f"),
    Operator("no_max_subtraction", r"peak = fmaxf\(peak, \w+\[c\]\)", "peak = 0.0f"),
    Operator("no_bias", r" \+ bias\[[^\]]+\]", ""),
    Operator("no_scale", r" \* (weight|scale)\[[^\]]+\]", ""),
    Operator("divisor_less_one", r"(?<!\bi) / ([a-z]\w*);", r" / (\1 - 1);"),
    Operator("equality", r"(if|\?|\()(.*) > 0\.0f", r"\1\2 >= 0.0f"),
    Operator("equality", r"(if \(\w+) > (\w+\[)", r"\1 >= \2"),
    Operator("race", r"atomic_add\(([^,]+), ([^;]+)\);", r"\1 += \2;"),
    Operator("no_barrier", r"__syncthreads\(\);", ""),
    Operator("tail_items", r"launch\(([^,]+),", r"launch(\1 - 1,", python=True),
    Operator("last_block_items", r"launch\(([^,]+),", r"launch((\1) // 64 * 64,", python=True),
    Operator(
        "stale_output",
        r"(\w+) = torch\.(empty|zeros)(_like)?\((.*)$",
        r"\1 = self.__dict__.setdefault('kept_\1', torch.\2\3(\4)",
        python=True,
    ),
)


def mutants(kernel: Kernel, device: str) -> Iterator[Mutant]:
    """Every mutant of this kernel but those it excludes, everywhere or on this device."""
    left_out = {name.removeprefix(f"{device} ") for name in kernel.skip}
    seen: dict[str, int] = {}
    for operator in OPERATORS:
        for name, wrong, line in _applied(kernel, operator, seen):
            if name not in left_out and operator.name not in left_out:
                yield Mutant(wrong, name, line)
    yield from _stale_parameters(kernel)
    for rewrite in kernel.rewrites:
        field = "body" if rewrite.old in kernel.body else "forward"
        text = getattr(kernel, field)
        if text.count(rewrite.old) != 1:
            raise ValueError(f"{kernel.name}: {rewrite.old!r} occurs {text.count(rewrite.old)} x")
        wrong = replace(kernel, **{field: text.replace(rewrite.old, rewrite.new)})
        yield Mutant(wrong, rewrite.operator, rewrite.new.strip())


def excluded(kernel: Kernel) -> dict[str, str]:
    """Names of mutants or operators that are left out here, each with the reason.

    Raises ValueError where one of them excludes nothing.
    """
    made = {name for op in OPERATORS for name, _, _ in _applied(kernel, op, {})}
    made |= {op.name for op in OPERATORS if any(_applied(kernel, op, {}))}
    idle = {re.sub("^(cpu|cuda) ", "", name) for name in kernel.skip} - made
    if idle:
        raise ValueError(f"{kernel.name}: excludes {sorted(idle)}, which nothing makes")
    return dict(kernel.skip)


def _applied(
    kernel: Kernel, operator: Operator, seen: dict[str, int]
) -> Iterator[tuple[str, Kernel, str]]:
    if operator.square and not kernel.square:
        return
    field = "forward" if operator.python else "body"
    lines = getattr(kernel, field).splitlines()
    for number, line in enumerate(lines):
        for match in re.finditer(operator.pattern, line):
            edited = (
                match.expand(operator.edit)
                if isinstance(operator.edit, str)
                else (operator.edit(match))
            )
            if "LOOP" in edited:
                edited = edited.replace("LOOP", _loop_variable(lines[: number + 1]))
            wrong = line[: match.start()] + edited + line[match.end() :]
            seen[operator.name] = seen.get(operator.name, 0) + 1
            changed = "\n".join([*lines[:number], wrong, *lines[number + 1 :]])
            name = f"{operator.name} {seen[operator.name]}"
            yield name, replace(kernel, **{field: changed}), wrong.strip()


def _stale_parameters(kernel: Kernel) -> Iterator[Mutant]:
    """Each parameter read once, at construction, and never again."""
    for made in re.finditer(r"( *)self\.(\w+) = nn\.Parameter\(.*\)", kernel.forward):
        name = made[2]
        copied = f"{made[0]}\n{made[1]}self.first = self.{name}.detach().clone()"
        read = f"self.first.to(self.{name})"
        wrong = kernel.forward.replace(made[0], copied).replace(f"= self.{name}\n", f"= {read}\n")
        yield Mutant(replace(kernel, forward=wrong), f"stale_parameter {name}", read)


def _loop_variable(lines: list[str]) -> str:
    """Of the loop that the last line is in, by indentation; the item where it is in none."""
    depth = len(lines[-1]) - len(lines[-1].lstrip())
    for position, line in enumerate(reversed(lines)):
        found = re.search(r"for \(i64 (\w+)", line)
        if found and (position == 0 or len(line) - len(line.lstrip()) < depth):
            return found[1]
    return "i"
