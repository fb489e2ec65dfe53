"""What a model is told about a failure or a measurement, each kind in its own words. Pure.

Correctness first: a failed candidate is told what went wrong and where, never how fast it was; a
correct one is told its interval and how far the device's own limits are. It shows what the
evaluation holds and knows nothing more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from agent.types import Attempt, Measured
from sandbox.evidence import Layer
from sandbox.types import Candidate, EvalConfig, Evaluation, Status, Task

TAIL_CHARACTERS = 4000
"""Of a log: about 1000 tokens, enough for a traceback or a linker's last words."""
SHOWN_ERRORS = 6
"""Of a compiler: the first ones; later ones mostly follow from them."""
ECHO_LINES = 4
"""Of what a compiler prints below an error: its source line, its mark, a note."""
CONTEXT_LINES = 2
"""Above and below a line that the compiler names but does not show."""
ERROR_LINE = re.compile(r"(?:^|[\s:)])(?:fatal )?error(?:\s*[:#]|\s+[A-Z]*\d+)", re.IGNORECASE)
LINE_NUMBER = re.compile(r"\((\d+)\)\s*: (?:fatal )?error|:(\d+):(?:\d+:)? (?:fatal )?error")
UNKNOWN = "unknown"
"""A bound of which nothing tells."""
LAUNCH_BOUND = 3.0
"""Below so many launch costs a call, the launches themselves are what is left to save."""
NEAR_FLOOR = 0.9
"""Of the roofline: nothing worth the effort is left beyond it."""
MEMORY_BOUND = 0.5

ADVICE = {
    Status.TIMEOUT: (
        "It did not end in time: look for a loop whose bound is wrong, a barrier that not every "
        "thread reaches, a wait that nothing ends, or far too little parallelism."
    ),
    Status.OUT_OF_MEMORY: "It took more memory than it may: allocate less, or reuse within a call.",
    Status.RUNTIME_ERROR: (
        "It compiled and then failed: check launch dimensions, argument types and counts, index "
        "bounds at every size, and alignment of vector loads."
    ),
    Status.WRONG_SHAPE: "The result's structure, shape or layout is not the reference's.",
    Status.WRONG_DTYPE: "Every result must have the dtype of the reference's.",
    Status.INPUT_MUTATED: "Inputs must be left as they are: write to a tensor of your own.",
    Status.REWARD_HACK: (
        "The rule named in the verdict was broken. No measurement counts for such a file; write "
        "one that computes the whole result from its inputs on every call."
    ),
}


def advice(evaluation: Evaluation) -> str:
    """What a failure of this kind usually means; empty where its own words say all."""
    return ADVICE.get(evaluation.status, "")


def build_errors(candidate: Candidate, evaluation: Evaluation) -> str:
    """A compiler's errors with their source lines, without the command lines around them; empty
    where there are none.
    """
    if evaluation.status is not Status.COMPILE_ERROR:
        return ""
    text = evaluation.build_log if evaluation.build_log.strip() else evaluation.stderr
    lines = [line for line in text.splitlines() if not _is_noise(line)]
    places = [i for i, line in enumerate(lines) if ERROR_LINE.search(line)]
    if not places:
        return tail("\n".join(lines))
    shown: list[str] = []
    for place in places[:SHOWN_ERRORS]:
        echo = _echo(lines[place + 1 :])
        shown += [_short(lines[place]), *(echo or _context(candidate.source, lines[place]))]
    if len(places) > SHOWN_ERRORS:
        shown.append(f"[{len(places) - SHOWN_ERRORS} more errors]")
    return tail("\n".join(shown))


def _is_noise(line: str) -> bool:
    """Ninja's progress, compilers' command lines and template back-traces."""
    return bool(re.match(r"\[\d+/\d+\]|FAILED:|ninja:|\S*(c\+\+|g\+\+|nvcc) .*-", line.strip()))


def _echo(following: Sequence[str]) -> list[str]:
    """The lines below an error that belong to it: indented, or of gcc's `12 |` form."""
    own = []
    for line in following[:ECHO_LINES]:
        if not line.strip() or not re.match(r"\s+\S", line) or ERROR_LINE.search(line):
            break
        own.append(_short(line))
    return own


def _context(source: str, error: str) -> list[str]:
    """Lines around the one the error names, from the kernel's source string in the candidate."""
    found = LINE_NUMBER.search(error)
    if found is None:
        return []
    number = int(found[1] or found[2])
    kernel = max(_strings(source), key=len, default="").split("\n")
    if not 0 < number <= len(kernel):
        return []
    first = max(1, number - CONTEXT_LINES)
    last = min(len(kernel), number + CONTEXT_LINES)
    return [
        f"{'>' if i == number else ' '} {i:4} | {_short(kernel[i - 1])}"
        for i in range(first, last + 1)
    ]


def _strings(source: str) -> list[str]:
    """String constants of several lines: where kernels are written."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value
    ]


def _short(line: str) -> str:
    """Without the scratch folder's path, and not a page long."""
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", line)[:300]


def limits(evaluation: Evaluation, measured: Measured | None) -> list[str]:
    """How far a correct candidate is from what the device allows, and what bounds it."""
    timing = evaluation.timing
    if timing is None:
        return []
    lines = kernel_claims(evaluation) + counter_claims(evaluation)
    launch_s = (measured.launch_s if measured is not None else None) or 0.0
    bound_by_launches = timing.candidate_ms < LAUNCH_BOUND * launch_s * 1e3
    if bound_by_launches:
        lines.append(
            f"it is bound by launches: one costs {launch_s * 1e6:.1f} us of its "
            f"{timing.candidate_ms * 1e3:.1f} us"
        )
    if timing.floor_ms is None:
        return lines
    share = timing.floor_ms / timing.candidate_ms
    rate = (
        ""
        if measured is None or measured.copy_bytes_s is None
        else (
            f", {share * measured.copy_bytes_s / 1e9:.0f} of {measured.copy_bytes_s / 1e9:.0f} GB/s"
        )
    )
    lines.append(
        f"moving its inputs and outputs once takes at least {milliseconds(timing.floor_ms)}: it "
        f"is at {100 * share:.0f} % of that roofline{rate}"
    )
    if share >= NEAR_FLOOR:
        lines.append("little can be left to gain; do not trade correctness for it")
    elif share >= MEMORY_BOUND:
        lines.append("it is bound by memory traffic: move fewer bytes, or move them better")
    elif not bound_by_launches:
        lines.append("memory traffic alone does not explain its time: look at arithmetic, latency")
    return lines


def bottleneck_of(
    latency_ms: float | None, floor_ms: float | None, measured: Measured | None
) -> str:
    """What bounds a call of this latency, in a word or two; `unknown` where nothing tells."""
    launch_s = (measured.launch_s if measured is not None else None) or 0.0
    if latency_ms is None:
        return UNKNOWN
    if latency_ms < LAUNCH_BOUND * launch_s * 1e3:
        return "launch-bound"
    if floor_ms is None:
        return UNKNOWN
    return "memory-bound" if floor_ms / latency_ms >= MEMORY_BOUND else "far from memory-bound"


def kernel_claims(evaluation: Evaluation) -> list[str]:
    """Registers, spills and shared memory of its kernels, as its own process reported them."""
    return _told(evaluation, Layer.RUNTIME, "kernel ")


def counter_claims(evaluation: Evaluation) -> list[str]:
    """What hardware counters said of its calls, where it was profiled and they may be read."""
    return _told(evaluation, Layer.PROVENANCE, "counter ")


def _told(evaluation: Evaluation, layer: Layer, word: str) -> list[str]:
    """A layer's facts that begin so."""
    facts = (f for e in evaluation.evidence if e.layer is layer for f in e.facts)
    return [fact for fact in facts if fact.startswith(word)]


def measured_lines(measured: Measured | None) -> list[str]:
    """Baselines and limits that were measured on this very machine."""
    if measured is None:
        return []
    lines = []
    if measured.eager_ms is not None:
        lines.append(f"the reference in eager mode: {milliseconds(measured.eager_ms)} a call")
    lines += [f"{name}: {milliseconds(ms)} a call" for name, ms in measured.baselines_ms.items()]
    if measured.floor_ms is not None:
        lines.append(
            "roofline: moving every input and output once takes at least "
            f"{milliseconds(measured.floor_ms)}"
        )
    if measured.copy_bytes_s is not None:
        lines.append(f"memory bandwidth (copy): {measured.copy_bytes_s / 1e9:.0f} GB/s")
    for name, flops in measured.matmul_flops.items():
        lines.append(f"matrix multiplication in {name}: {flops / 1e12:.3g} TFLOP/s")
    if measured.launch_s:
        lines.append(f"one more kernel launch: {measured.launch_s * 1e6:.1f} us")
    if measured.cache_bytes:
        lines.append(f"last-level cache: {measured.cache_bytes / 2**20:.0f} MiB")
    return lines


def precision_policy(task: Task, policy: EvalConfig | None) -> str:
    """What precision the comparison allows."""
    if task.exact_float32:
        return "exact float32 is required; TF32 is refused"
    if policy is None or task.dtype != "float32":
        return ""
    if policy.torch_default_precision:
        return "torch's default precision flags hold for the reference; match its accuracy"
    if policy.tf32 and task.device == "cuda":
        return "float32, TF32 allowed in matrix products and convolutions, as for the reference"
    return "float32"


def one_line(attempt: Attempt) -> str:
    """An earlier attempt: what was tried and what came of it."""
    proposal, evaluation = attempt.proposal, attempt.evaluation
    what = str(proposal.features.get("feature", "")) or proposal.strategy or proposal.proposer
    if evaluation.speedup is not None:
        return f"{what}: correct, {evaluation.speedup} against eager"
    return f"{what}: {evaluation.status.value}" + (
        f" ({_short(evaluation.detail)[:120]})" if evaluation.detail else ""
    )


def tail(text: str, characters: int = TAIL_CHARACTERS) -> str:
    """The end of a log, cut at a line where there is one."""
    text = text.strip()
    if len(text) <= characters:
        return text
    kept = text[-characters:]
    return "[...]\n" + (kept.partition("\n")[2] or kept)


def ratio(value: float) -> str:
    return f"{value:.2f}x"


def milliseconds(value: float) -> str:
    return f"{value:.4g} ms"
