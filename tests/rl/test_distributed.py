"""Fine-tuning in several processes, as `torchrun` and `accelerate launch` start them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the train extra")

import torch

from agent.prompts.message import Message
from rl.config import HeldOut, load_train
from rl.data import Example, build_dataset, load_examples, save_dataset
from rl.policy import load_policy
from rl.sft import sft

ROOT = Path(__file__).parents[2]
TRAIN = """
model: new
name: toy
shape: {{vocabulary: 400, hidden: 32, layers: 2, heads: 2, feed_forward: 32, context: 128}}
device: cpu
optimizer: sgd
sft: {{epochs: 3, learning_rate: 0.1, batch: {batch}, max_tokens: 128}}
"""
"""Adam's first steps are of one size whatever the gradient: noise of sums would show."""
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
"""accelerate starts several processes on a CPU by MPI alone."""


def example(number: int) -> Example:
    asked = [Message(role="user", content=f"double {number}")]
    return Example(f"t{number}", "f", "c", "s", "propose", asked, f"{2 * number} it is", None, "")


@pytest.mark.slow
def test_two_processes_learn_what_one_does_from_the_same_batches(tmp_path):
    save_dataset(build_dataset(map(example, range(4)), HeldOut(0.0, 0.0)), tmp_path / "data")
    for name, batch in (("one.yaml", 4), ("two.yaml", 2)):
        (tmp_path / name).write_text(TRAIN.format(batch=batch))
    command = [sys.executable, *LAUNCH, "warpsmith.py", "train"]
    options = {"--data": "data", "--to": "two", "--config": "two.yaml"}
    words = [word for name, value in options.items() for word in (name, str(tmp_path / value))]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    ran = subprocess.run(
        [*command, "sft", *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.count(" parameters, ") == 1
    config = load_train(str(tmp_path / "one.yaml"))
    sft(load_examples(tmp_path / "data"), config, tmp_path / "one", "cpu", None)
    one, two = (load_policy(tmp_path / name).model.state_dict() for name in ("one", "two"))
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=1e-4, atol=1e-6)
    assert not (tmp_path / "two" / "trainer").exists()
