"""Tasks, failures and measurements -> chat messages. Pure: equal arguments give equal text.

Search and training render with the same functions (a policy trained on one prompt and searched
with another is a silent bug). The sequence propose, repair with the error, optimise the best so far
is CUDA-LLM's FSR (arXiv 2506.09092), and so are the feature hints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.prompts.message import Message
from sandbox.types import Candidate, Evaluation, Language, Task

FOLDER = Path(__file__).parent
TAIL_CHARACTERS = 4000
"""Of a log: about 1000 tokens, enough for a compiler's last errors or a traceback."""
NO_CODE = "# no code: "
"""Starts the source of a candidate whose reply held none (agent/openai_proposer.py)."""

TITLES: Mapping[Language, str] = {
    Language.CPP: "C++ and OpenMP for CPUs",
    Language.CUDA: "CUDA",
    Language.CUDA_INLINE: "CUDA and PyTorch extensions",
    Language.TRITON: "Triton",
}
"""The languages there are prompts for."""

GPU_HINTS = (
    "fuse operations so that intermediate results never reach global memory",
    "tiling: blocks of the problem staged in shared memory, with padding against bank conflicts",
    "coalesced and vectorised access (float4, 128-bit loads and stores)",
    "warp primitives (shuffles, reductions) in place of shared memory and __syncthreads",
    "register blocking: several outputs per thread, loops unrolled",
    "tensor cores, where the allowed error permits their precision",
    "asynchronous copies and double buffering, so that loads overlap arithmetic",
    "occupancy and launch shape: threads a block, persistent or grid-stride blocks, no tail wave",
    "fewer launches and fewer temporary tensors",
)
CPU_HINTS = (
    "fuse operations so that intermediate results stay in registers or cache",
    "tiling for the L1 and L2 caches; contiguous inner loops",
    "vectorisation: omp simd, no aliasing, no branches in the inner loop, polynomials for exp, log",
    "several independent accumulators, to hide the latency of dependent additions",
    "threads: enough work each, static schedules, no false sharing",
    "non-temporal stores for large outputs that are not read again",
    "fewer temporary tensors and fewer passes over memory",
)


def render_propose(task: Task, language: Language, facts: Mapping[str, object]) -> list[Message]:
    """The first prompt. `facts` describes the device, name by name, in the order to be shown."""
    return _messages(language, "propose.j2", task=task, facts=facts)


def render_repair(
    task: Task,
    language: Language,
    facts: Mapping[str, object],
    candidate: Candidate,
    evaluation: Evaluation,
) -> list[Message]:
    """The failed source with its verdict: a prompt of its own, so that its length is bounded."""
    reason = candidate.source.removeprefix(NO_CODE).strip()
    return _messages(
        language,
        "repair.j2",
        task=task,
        facts=facts,
        candidate=candidate,
        evaluation=evaluation,
        no_code=reason if candidate.source.startswith(NO_CODE) else None,
    )


def render_improve(
    task: Task,
    language: Language,
    facts: Mapping[str, object],
    candidate: Candidate,
    evaluation: Evaluation,
) -> list[Message]:
    """The best source so far with what was measured, to be optimised further."""
    return _messages(
        language,
        "improve.j2",
        task=task,
        facts=facts,
        candidate=candidate,
        timing=evaluation.timing,
        baselines=evaluation.baselines,
        hints=CPU_HINTS if language is Language.CPP else GPU_HINTS,
    )


def example(name: str) -> str:
    """A worked example's source: a language's, or `reference`."""
    return (FOLDER / "examples" / f"{name}.py.j2").read_text(encoding="utf-8")


def _messages(language: Language, template: str, **values: object) -> list[Message]:
    if language not in TITLES:
        raise ValueError(f"no prompts for language {language.value!r}; expected one of {[*TITLES]}")
    system = environment().get_template("system.j2")
    user = environment().get_template(template)
    return [
        Message(
            role="system",
            content=system.render(
                title=TITLES[language],
                language=language.value,
                reference_example=example("reference"),
                language_example=example(language.value),
            ),
        ),
        Message(role="user", content=user.render(values)),
    ]


@cache
def environment() -> Environment:
    """The templates; a name they are not given is an error, not an empty text."""
    templates = Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters |= {
        "fenced": fenced,
        "tail": tail,
        "ratio": ratio,
        "milliseconds": milliseconds,
    }
    return templates


def fenced(text: str, language: str = "") -> str:
    """A fenced block that the text cannot close, whatever backticks it holds."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


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
