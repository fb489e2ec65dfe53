"""Tasks, failures and measurements -> chat messages. Pure: equal arguments give equal text.

Search and training render with the same functions (a policy trained on one prompt and searched
with another is a silent bug). What is said about a failure or a measurement is `feedback`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.prompts import feedback
from agent.prompts.hints import features_for
from agent.prompts.message import Message
from agent.types import Attempt, Measured, Proposal
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Task

FOLDER = Path(__file__).parent
NO_CODE = "# no code: "
"""Starts the source of a candidate whose reply held none (agent/proposing/model_proposer.py)."""
SHOWN_CASES = 4
"""Of those that failed; the others mostly fail alike."""
SHOWN_ATTEMPTS = 6
"""Earlier attempts listed in a line each: what was tried already."""

TITLES: Mapping[Language, str] = {
    Language.CPP: "C++ and OpenMP for CPUs",
    Language.CUDA: "CUDA",
    Language.CUDA_INLINE: "CUDA and PyTorch extensions",
    Language.TRITON: "Triton",
}
"""The languages there are prompts for."""


@dataclass(frozen=True)
class Scene:
    """What every prompt about one task says."""

    task: Task
    language: Language
    facts: Mapping[str, object] = field(default_factory=dict)
    """About the machine, name by name, in the order to be shown."""
    measured: Measured | None = None
    """Baselines and what the device was measured to do; None before the task is prepared."""
    policy: EvalConfig | None = None
    """For its precision policy; None leaves it out."""
    repeats: Sequence[Proposal] = ()
    """Answers so far that were known programs; for strategies, no prompt shows them."""
    tuning: bool = False
    """Constants that a reply declares are searched (agent/proposing/tuning.py)."""
    recalled: Sequence[str] = ()
    """A line each: what was confirmed on similar tasks in earlier campaigns (agent/memory)."""
    recalled_source: str | None = None
    """The kernel of the first of them, where it may be shown."""


def render_propose(scene: Scene) -> list[Message]:
    """The first prompt."""
    return _messages(scene, "propose.j2")


def render_repair(scene: Scene, candidate: Candidate, evaluation: Evaluation) -> list[Message]:
    """The failed source with its verdict: a prompt of its own, so that its length is bounded."""
    reason = candidate.source.removeprefix(NO_CODE).strip()
    failed = [case for case in evaluation.cases if not case.passed]
    return _messages(
        scene,
        "repair.j2",
        candidate=candidate,
        evaluation=evaluation,
        failed_cases=failed[:SHOWN_CASES],
        more_cases=len(failed[SHOWN_CASES:]),
        advice=feedback.advice(evaluation),
        build_errors=feedback.build_errors(candidate, evaluation),
        no_code=reason if candidate.source.startswith(NO_CODE) else None,
    )


def render_improve(
    scene: Scene,
    candidate: Candidate,
    evaluation: Evaluation,
    feature: str | None = None,
    history: Sequence[Attempt] = (),
) -> list[Message]:
    """The best source so far with what was measured, to be optimised further: by the named
    feature, or by whichever attacks what limits it.
    """
    features = features_for(scene.language)
    return _messages(
        scene,
        "improve.j2",
        candidate=candidate,
        evaluation=evaluation,
        limits=feedback.limits(evaluation, scene.measured),
        hints=list(features.values()) if feature is None else [features[feature]],
        one_feature=feature is not None,
        tried=[feedback.one_line(attempt) for attempt in history[-SHOWN_ATTEMPTS:]],
    )


def render_contrast(scene: Scene, exemplars: Sequence[Attempt]) -> list[Message]:
    """Earlier implementations with their scores, to be compared before a better one is written."""
    return _messages(
        scene,
        "contrast.j2",
        exemplars=exemplars,
        limits=feedback.limits(exemplars[-1].evaluation, scene.measured),
    )


def render_crossover(scene: Scene, parents: Sequence[Attempt]) -> list[Message]:
    """Two correct implementations, the slower first, of which one child is to be written."""
    return _messages(
        scene,
        "crossover.j2",
        parents=parents,
        limits=feedback.limits(parents[-1].evaluation, scene.measured),
    )


def example(name: str) -> str:
    """A worked example's source: a language's, or `reference`."""
    return (FOLDER / "examples" / f"{name}.py.j2").read_text(encoding="utf-8")


def _messages(scene: Scene, template: str, **values: object) -> list[Message]:
    language = scene.language
    if language not in TITLES:
        raise ValueError(f"no prompts for language {language.value!r}; expected one of {[*TITLES]}")
    system = environment().get_template("system.j2")
    user = environment().get_template(template)
    shown = system.render(
        title=TITLES[language],
        language=language.value,
        reference_example=example("reference"),
        language_example=example(language.value),
        tuning=scene.tuning,
    )
    asked = user.render(
        task=scene.task,
        facts=scene.facts,
        measured=feedback.measured_lines(scene.measured),
        precision=feedback.precision_policy(scene.task, scene.policy),
        recalled=scene.recalled,
        recalled_source=scene.recalled_source,
        **values,
    )
    return [Message(role="system", content=shown), Message(role="user", content=asked)]


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
        "tail": feedback.tail,
        "ratio": feedback.ratio,
        "milliseconds": feedback.milliseconds,
    }
    return templates


def fenced(text: str, language: str = "") -> str:
    """A fenced block that the text cannot close, whatever backticks it holds."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
