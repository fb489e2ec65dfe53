"""`cuda` winners without a GPU: artefacts as a campaign on an H200 would have left them.

The figures are scripted; sources, interfaces and what is made of them are real.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

from agent.export.artefact import Artefact, Finding, Gathered, Provenance
from agent.export.capture import interface
from agent.proposing.scripted import scripted_evaluation
from sandbox.types import Candidate, EvalConfig, Evaluation, Language, Status, Task

EXAMPLES = files("agent.prompts") / "examples"
REFERENCE = (EXAMPLES / "reference.py.j2").read_text().replace("4096, 1024", "64, 1024")
H200 = {"device": "cuda", "gpu": "NVIDIA H200", "arch": "sm_90"}


def cuda_evaluation(candidate: Candidate, status: Status = Status.PASSED) -> Evaluation:
    found = scripted_evaluation(candidate, EvalConfig(), status, 2.0)
    return replace(found, environment=H200, parameters="name", precision="float32")


def cuda_artefact(
    task_id: str = "test/bias_relu", language: Language = Language.CUDA, source: str | None = None
) -> Artefact:
    """The example that models are shown, in a language, as the winner of a task."""
    task = Task(task_id, REFERENCE, "cuda")
    text = (EXAMPLES / f"{language.value}.py.j2").read_text() if source is None else source
    candidate = Candidate(task_id, language, text)
    evaluation = cuda_evaluation(candidate)
    return Artefact(
        operator=task_id.rpartition("/")[2].lower(),
        task=task,
        interface=interface(task),
        candidate=candidate,
        config=EvalConfig(),
        findings=(Finding("confirm", "campaign h200", evaluation),),
        provenance=Provenance("h200", "example", "no model", "", (), None, {}),
        licence="Apache-2.0",
    )


def gathered(*artefacts: Artefact) -> Gathered:
    return Gathered(artefacts, ())
