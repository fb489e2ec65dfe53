"""A journal of any size as a campaign with a model would have left it, written at once.

Its figures and sources are made up from a seed; nothing is measured. It has what a report must
bear: all verdicts, repairs, exemplars with two parents, caught hacks, confirmations, updates of a
policy, and text that tries to break out of a page.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from agent.config import OptimizeConfig
from agent.journals.journal import Journal
from agent.journals.recorded import Purpose
from agent.journals.timings import EVENT
from agent.learner import LEARN, POLICY_VERSION, Lesson
from agent.types import Measured, Proposal, Usage
from rewards.speedup import NAME, reward
from sandbox.evidence import Evidence, Kind, Layer, Weight
from sandbox.figures import Baseline, Interval, Pair, Timing
from sandbox.records import to_record
from sandbox.types import Candidate, CaseResult, EvalConfig, Evaluation, Language, Status, Task

HOSTILE = "</script><script>document.title = 'broken'</script><!--"
"""In sources, details, prompts and replies of some candidates."""
ENVIRONMENT = {
    "device": "cuda",
    "gpu": "NVIDIA H200",
    "driver": "580.159.04",
    "torch": "2.11.0+cu130",
    "python": "3.12.3",
    "walls": "full",
}
FAILURES = (
    (Status.COMPILE_ERROR, 'line 41: error: identifier "blockDimx" is undefined'),
    (Status.WRONG_VALUE, "case scaled x3: norm error 0.031, allowed 4.2e-05"),
    (Status.REWARD_HACK, "returned before its work was done: 0.31 ms of it came to light later"),
    (Status.TIMEOUT, "a batch did not end within 60 s"),
    (Status.RUNTIME_ERROR, "CUDA error: an illegal memory access was encountered"),
)
REFERENCE = '''import torch
from torch import nn

ROWS, COLUMNS = 4096, 4096


class Model(nn.Module):
    """{name}"""

    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
'''
KERNEL = '''import torch
from torch import nn
import cupy

SOURCE = r"""
// One block per row; thread -> columns threadIdx.x + k * {threads}.
extern "C" __global__ void __launch_bounds__({threads})
softmax_rows(const float* __restrict__ x, float* __restrict__ y, int columns) {{
    __shared__ float partial[{threads} / 32];
    const float* row = x + (size_t)blockIdx.x * columns;
    float largest = -INFINITY;
    #pragma unroll {unroll}
    for (int c = threadIdx.x; c < columns; c += {threads}) largest = fmaxf(largest, row[c]);
    largest = block_max<{threads}>(largest, partial);
    float sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += {threads}) sum += __expf(row[c] - largest);
    sum = block_sum<{threads}>(sum, partial);
    // {remark}
    for (int c = threadIdx.x; c < columns; c += {threads})
        y[(size_t)blockIdx.x * columns + c] = __expf(row[c] - largest) / sum;
}}
"""
MODULE = cupy.RawModule(code=SOURCE, options=("--std=c++17",))


class ModelNew(nn.Module):
    """Attempt {number}: {remark}."""

    def forward(self, x):
        y = torch.empty_like(x)
        kernel = MODULE.get_function("softmax_rows")
        kernel((x.shape[0],), ({threads},), (x.data_ptr(), y.data_ptr(), x.shape[1]))
        return y
'''
LONG = "_transposed_2D_asymmetric_input_asymmetric_kernel_strided__grouped____padded____dilated__"
"""As KernelBench names some."""
REMARKS = (
    "reads are coalesced and each row stays in registers",
    "float4 loads halve the number of transactions",
    "online softmax: one pass for the maximum and the sum",
    "two rows per block hide the latency of the reduction",
    "the reduction uses shuffles only, no shared memory",
)


def write_run(
    folder: Path,
    tasks: int = 6,
    candidates: int = 12,
    *,
    finished: bool = True,
    learning: bool = False,
    seed: int = 0,
) -> Path:
    """A run's folder with so many tasks and proposals each."""
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(seed)
    with Journal(folder) as journal:
        # One journal per test, thrown away: nothing has to survive a power cut.
        journal._database.execute("PRAGMA synchronous=OFF")
        journal.record_config(OptimizeConfig(tasks=("kernelbench",), model="scripted-70b"))
        journal.record_event("command", detail=json.dumps(["warpsmith", "optimize", HOSTILE]))
        for number in range(tasks):
            _task(journal, number, candidates, dice, finished, learning)
        for version in range(1, 9 if learning else 0):
            figures = {
                "reward": -0.4 + 0.15 * version + dice.gauss(0, 0.05),
                "correct": 1 - math.exp(-version / 4),
                "hacks": 0.1 / version,
                "loss": 0.5 / version,
                "gradient_norm": 1 + dice.random(),
                "term/correct": 0.1 * version,
                "seconds": 21.0,
            }
            lesson = Lesson(version, 32, 6, 8, figures)
            journal.record_event(LEARN, seconds=21.0, detail=json.dumps(to_record(lesson)))
        pulse = {"elapsed_s": 900.0, "lanes": 2, "evaluations": tasks * candidates}
        journal.record_event(EVENT, detail=json.dumps({**pulse, "held_s": 1210.0, "queues": {}}))
    return folder


def _task(
    journal: Journal,
    number: int,
    candidates: int,
    dice: random.Random,
    finished: bool,
    learning: bool,
) -> None:
    name = f"{number + 1}_{dice.choice(('Softmax', 'Matmul', 'LayerNorm', 'Conv2d', 'GELU'))}"
    name += LONG if number == 1 else ""
    task = Task(f"kernelbench/level{1 + number % 3}/{name}", REFERENCE.format(name=name), "cuda")
    journal.record_task(task)
    journal.record_measured(task.id, Measured(0.11, {"compile": 0.085}))
    level = dice.gauss(0.1, 0.35)
    best: tuple[float, str] | None = None
    sources: list[str] = []
    for place in range(candidates):
        source = _source(dice, place, number)
        candidate = Candidate(task.id, Language.CUDA, source)
        parents = tuple(dice.sample(sources, min(len(sources), 1 + place % 2)))
        if best is not None and parents and dice.random() < 0.7:
            parents = (best[1],)
        proposal = Proposal(
            candidate,
            "scripted-70b",
            ("propose", "repair", "contrast")[place % 3] if sources else "propose",
            tuple(dict.fromkeys(parents)),
            {POLICY_VERSION: place // 4} if learning else {},
            _prompt(task, sources, journal, parents, dice),
            f"The reduction is the bottleneck. {dice.choice(REMARKS)}.\n\n```python\n{source}```\n"
            + (HOSTILE if place == 1 else ""),
            Usage(2900 + dice.randrange(900), 1400 + dice.randrange(700), 0.011, 14.2),
        )
        journal.record_proposals(place // 4, [proposal])
        if place and not finished and place > candidates * 0.6:
            continue
        evaluation = _evaluation(task, candidate, dice, level, place)
        journal.record_evaluation(task, evaluation, reward=reward(evaluation), function=NAME)
        sources.append(candidate.id)
        speedup = evaluation.speedup
        if speedup is not None and (best is None or speedup.low > best[0]):
            best = (speedup.low, candidate.id)
            level += abs(dice.gauss(0, 0.12))
            winner, figure = candidate, evaluation
    if finished and best is not None and figure.timing is not None and figure.timing.faster:
        value = best[0] * dice.uniform(0.97, 1.05)
        confirmed = _passed(task, winner, dice, value, half=0.01)
        journal.record_evaluation(task, confirmed, purpose=Purpose.CONFIRM)
    stage = "done" if finished or number % 3 == 0 else "measuring"
    journal.record_event("stage", task_id=task.id, detail=f"{stage} ")


def _source(dice: random.Random, place: int, number: int) -> str:
    remark = HOSTILE if place == 1 else dice.choice(REMARKS)
    threads, unroll = dice.choice((128, 256, 512, 1024)), dice.choice((1, 2, 4, 8))
    text = KERNEL.format(threads=threads, unroll=unroll, remark=remark, number=place)
    lines = [f"TILE_{k} = {dice.randrange(1 << 30)}" for k in range(dice.randrange(4, 30))]
    return f"# {number}\n" + text + "\n".join(lines) + "\n"


def _prompt(
    task: Task, sources: list[str], journal: Journal, parents: tuple[str, ...], dice: random.Random
) -> str:
    shown = "".join(
        str(
            journal._database.execute(
                "SELECT source FROM candidates WHERE candidate_id = ?", (parent,)
            ).fetchone()[0]
        )
        for parent in parents
    )
    rules = "\n".join(f"Rule {k}: results must follow the parameters." for k in range(60))
    asked = f"Make this faster.\n\n{task.source}\n\n{shown}\nOf {len(sources)} attempts so far."
    return json.dumps(
        [{"role": "system", "content": rules}, {"role": "user", "content": asked + HOSTILE}]
    )


def _evaluation(
    task: Task, candidate: Candidate, dice: random.Random, level: float, place: int
) -> Evaluation:
    if place == 1 or dice.random() < 0.35:
        status, detail = FAILURES[2] if place == 1 else dice.choice(FAILURES)
        evidence = [Evidence(Layer.STATIC, Weight.CLEAN)]
        if status is Status.REWARD_HACK:
            evidence.append(Evidence(Layer.TIMING, Weight.PROOF, (detail, HOSTILE)))
        return Evaluation(
            task.id,
            candidate.id,
            EvalConfig().id,
            status,
            detail=detail + (HOSTILE if place == 1 else ""),
            cases=(CaseResult("given", status is not Status.WRONG_VALUE, 1e-7, 4e-5),),
            evidence=tuple(evidence),
            environment=ENVIRONMENT,
            seconds={"build": 0.3, "load": 0.9, "verify": 0.2},
            stderr=f"Traceback: {detail}\n",
        )
    return _passed(task, candidate, dice, math.exp(dice.gauss(level, 0.15)), half=0.02)


def _passed(
    task: Task, candidate: Candidate, dice: random.Random, speedup: float, half: float
) -> Evaluation:
    half *= dice.uniform(0.5, 6)
    interval = Interval(speedup, speedup * math.exp(-half), speedup * math.exp(half))
    pairs = tuple(
        Pair(0.11, 0.11 / speedup, math.log(speedup) + dice.gauss(0, half), 8) for _ in range(3)
    )
    names = ("given", "scaled x3", "scaled x0.01", "flattened", "one element changed")
    return Evaluation(
        task.id,
        candidate.id,
        EvalConfig().id,
        Status.PASSED,
        cases=tuple(CaseResult(n, True, dice.uniform(1e-8, 1e-6), 4.2e-5) for n in names),
        timing=Timing(0.11, 0.11 / speedup, interval, 0.006, pairs, 128, 0.028),
        baselines=(Baseline("compile", 0.085, Interval(1.294, 1.27, 1.31)),),
        precision="float32",
        parameters="none",
        evidence=(
            *(Evidence(layer, Weight.CLEAN) for layer in list(Layer)[:8]),
            Evidence(Layer.MEMORY, Weight.NOTED, ("peak 1.1 times the reference's",)),
        ),
        kind=Kind.REWRITE if dice.random() < 0.06 else Kind.KERNEL,
        environment=ENVIRONMENT,
        seconds={"build": 0.3, "load": 0.9, "verify": 0.2, "warm": 0.1, "time": 0.7, "total": 2.2},
    )
