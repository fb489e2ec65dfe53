"""What a policy learns to write: plainer than the feature proposer's text, and the same program."""

import pytest

from agent.features.proposer import FeatureProposer
from kernelbench.suite import load_tasks
from rl.plain import plain
from sandbox.evaluator import LocalEvaluator
from sandbox.types import Candidate, EvalConfig, Language

CONFIG = EvalConfig(baselines=(), batch_ms=1.0, rounds=4, scales=(3.0,), changes=())


def kernel_of(task):
    [proposal] = FeatureProposer().propose(task, [], 1)
    return proposal.candidate.source


def test_what_cannot_be_told_from_the_task_is_gone():
    [task] = load_tasks("builtin/softmax", "cpu")
    source = kernel_of(task)
    text = plain(source)
    for word in ("features_", "out__softmax", "ROWS", "\n// "):
        assert word in source
        assert word not in text
    assert text == plain(text)


def test_another_source_is_left_as_it_is():
    text = "import torch\nROWS = 3\nv17 = 2\n"
    assert plain(text) == text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cross_entropy", "residual_add_layer_norm"])
def test_the_plain_kernel_passes_as_the_given_one_does(name, tmp_path):
    [task] = load_tasks(f"builtin/{name}", "cpu")
    evaluator = LocalEvaluator("cpu", cache_dir=tmp_path)
    candidate = Candidate(task.id, Language.CPP, plain(kernel_of(task)))
    found = evaluator.evaluate(task, candidate, CONFIG, to_beat=100.0)
    evaluator.close()
    assert found.passed, found.detail
