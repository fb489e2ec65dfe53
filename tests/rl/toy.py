"""A toy that is small but real: two tasks, the feature proposer's kernels, a policy."""

from pathlib import Path

from agent.config import load_optimize
from agent.features.proposer import FeatureProposer
from agent.journals.journal import Journal
from agent.proposing.scripted import scripted_evaluation
from agent.types import Measured
from kernelbench.suite import load_tasks
from rewards import speedup
from sandbox.doctor import describe
from sandbox.types import EvalConfig, Status
from tests.conftest import run

MEASURED = Measured(copy_bytes_s=6e9, matmul_flops={"float32": 2.26e10}, cache_bytes=32 << 20)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Several spin where other processes want the cores: one is 5 times as fast on a busy machine."""
KERNELS = 3
"""Of each task, to learn from."""

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):  # (256, 512) float32
        return {formula}

def get_inputs():
    return [torch.randn(256, 512)]

def get_init_inputs():
    return []
"""
FORMULAS = {
    "gate": "torch.tanh(torch.sigmoid(x) * x + torch.tanh(x) * 0.5 + x * 0.1) * x - x * 0.25",
    "squash": "torch.sigmoid(x * 2.0) * x - torch.sigmoid(x) * 0.5 + x * 0.1 + torch.tanh(x)",
}
"""Some ten operations in eager, one pass in C++: every right kernel is a clear win."""
EVALUATION = (
    "{baselines: [], rounds: 4, batch_ms: 1, search_batch_ms: 1, max_sets: 16, min_pairs: 3, "
    "max_pairs: 3, scales: [3.0], changes: []}"
)
CAMPAIGN = f"""
device: cpu
engine: local
proposals_per_round: 4
max_candidates_per_task: 4
evaluation: {EVALUATION}
"""
TRAIN = """
model: new
name: toy
shape: {vocabulary: 1200, hidden: 96, layers: 2, heads: 4, feed_forward: 192, context: 2048}
device: cpu
tasks: [problems]
held_out: {families: 0.0, tasks: 0.0}
campaign: learn.yaml
exemplars: 1
sampling: {temperature: 1.0, max_new_tokens: 200, batch: 8}
sft: {epochs: 30, learning_rate: 4.0e-3, batch: 2, warmup_share: 0.05}
rl: {group: 4, learning_rate: 1.0e-4}
reward: {kind: milestones, partial: 0.3, format_weight: 0.2}
"""


def write(folder: Path) -> None:
    """The problems and configs of the toy."""
    (folder / "problems").mkdir()
    for name, formula in FORMULAS.items():
        (folder / "problems" / f"{name}.py").write_text(PROBLEM.format(formula=formula))
    learn = CAMPAIGN.replace("max_candidates_per_task: 4", "max_candidates_per_task: 6")
    (folder / "learn.yaml").write_text(learn + "tasks_at_once: 1\n")
    (folder / "toy.yaml").write_text(TRAIN)


def fitted(folder: Path) -> Path:
    """A checkpoint fine-tuned on the feature proposer's kernels of the toy's tasks.

    The scores in these prompts are scripted: what the policy is rewarded for comes later, and is
    measured.
    """
    (folder / "runs" / "features").mkdir(parents=True)
    with Journal(folder / "runs" / "features") as journal:
        journal.record_facts(describe("cpu"))
        journal.record_config(load_optimize(str(folder / "learn.yaml")))
        for task in load_tasks(str(folder / "problems"), "cpu"):
            journal.record_task(task)
            journal.record_measured(task.id, MEASURED)
            proposals = FeatureProposer().propose(task, [], KERNELS)
            journal.record_proposals(0, proposals)
            for number, proposal in enumerate(proposals):
                figure = scripted_evaluation(
                    proposal.candidate, EvalConfig(), Status.PASSED, 1.5 + number / 3
                )
                journal.record_evaluation(task, figure, reward=speedup.reward(figure))
    for arguments in (
        ("data", "examples", "features", "--to", "data", "--config", "toy.yaml"),
        ("train", "sft", "--data", "data", "--to", "policy", "--config", "toy.yaml"),
    ):
        done = run(folder, *arguments, environment=ONE_THREAD)
        assert done.code == 0, done.err
    return folder / "policy"
