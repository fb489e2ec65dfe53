"""The layers of defence, each named in the evaluation with its facts, by real candidates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox.evidence import Evidence, Kind, Layer, Weight
from sandbox.judging import layers
from sandbox.observation import Observation, Provenance, RuntimeClaim, TreeFacts
from sandbox.static.scan import Scan
from sandbox.types import Evaluation, Language, Status
from tests.sandbox.conftest import FAST, Evaluate, forward

HIDDEN = """
import importlib

def module(*path):
    return importlib.import_module(".".join(path))
"""
"""Names that are made while the file runs: static analysis does not see them."""


def of(found: Evaluation, layer: Layer) -> Evidence:
    return next(evidence for evidence in found.evidence if evidence.layer is layer)


@pytest.mark.alone
def test_an_honest_candidate_has_clean_evidence_in_every_layer(evaluate: Evaluate) -> None:
    found = evaluate(forward("return y"))
    assert found.status is Status.PASSED
    assert found.kind is Kind.REWRITE
    assert found.suspicions == ()
    seen = {evidence.layer for evidence in found.evidence}
    assert seen >= {
        Layer.STATIC,
        Layer.PROCESS,
        Layer.VALUES,
        Layer.HIDDEN_INPUTS,
        Layer.HIDDEN_PARAMETERS,
        Layer.RUNTIME,
        Layer.TREE,
        Layer.PRECISION,
        Layer.MEMORY,
    }
    assert of(found, Layer.RUNTIME).weight is Weight.CLEAN
    assert "torch operators: relu" in of(found, Layer.STATIC).facts
    assert "MiB, the reference" in of(found, Layer.MEMORY).facts[0]


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        ("replace(module('time'), 'perf_counter')", "time.perf_counter"),
        ("replace(module('torch').Tensor, 'clone')", "torch.Tensor.clone"),
        ("replace(module('torch', 'cuda'), 'synchronize')", "torch.cuda.synchronize"),
        (
            "replace(module('sandbox', 'machine', 'trees'), 'flatten')",
            "sandbox.machine.trees.flatten",
        ),
        ("recode(module('sandbox', 'worker', 'session').Session.do_go)", "Session.do_go"),
        ("replace(module('sandbox', 'worker', 'lone'), 'stand_by')", "worker.lone.stand_by"),
        ("replace(module('sandbox', 'worker', 'reserve'), 'on_host')", "reserve.on_host"),
        ("getattr(module('sys'), '_'.join(('settrace',)))(lambda *a: None)", "sys.settrace"),
        ("Through().__enter__()", "torch function mode Through"),
    ],
)
def test_a_replaced_function_is_a_hack_before_anything_is_timed(
    evaluate: Evaluate, patch: str, name: str
) -> None:
    top = f"""{HIDDEN}
def replace(owner, name):
    real = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: real(*a, **k))

class Through(module("torch", "overrides").TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {{}}))

def recode(function):
    function.__code__ = function.__code__.replace()

{patch}
"""
    found = evaluate(forward("return y", top=top))
    assert found.status is Status.REWARD_HACK, found.detail
    assert found.detail.startswith("runtime facts: ")
    assert name in found.detail
    assert found.timing is None
    assert "time" not in found.seconds


@pytest.mark.alone
def test_a_changed_setting_is_told_and_makes_the_class_flags(evaluate: Evaluate) -> None:
    found = evaluate(forward("return y", top="torch.backends.cudnn.benchmark = True"))
    assert found.status is Status.PASSED, found.detail
    assert found.kind is Kind.FLAGS
    assert "cudnn.benchmark: False -> True" in of(found, Layer.RUNTIME).facts


@pytest.mark.alone
def test_outputs_that_share_memory_are_told(evaluate: Evaluate) -> None:
    two = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x + 1.0, x + 2.0


def get_inputs():
    return [torch.randn(7, 129)]


def get_init_inputs():
    return []
"""
    joined = two.replace("class Model(", "class ModelNew(").replace(
        "return x + 1.0, x + 2.0",
        "both = torch.stack((x + 1.0, x + 2.0))\n        return both[0], both[1]",
    )
    found = evaluate(joined, reference=two)
    assert found.status is Status.PASSED, found.detail
    assert "outputs 0 and 1 of one call share memory" in of(found, Layer.RUNTIME).facts


@pytest.mark.alone
def test_threads_and_processes_left_running_are_told(evaluate: Evaluate) -> None:
    top = """
import os, threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
if os.fork() == 0:
    time.sleep(1000)
"""
    found = evaluate(forward("return y", top=top))
    assert found.status is Status.PASSED, found.detail
    tree = of(found, Layer.TREE)
    assert tree.weight is Weight.NOTED
    assert any("left running: " in fact for fact in tree.facts)
    threads, before = [int(word) for word in tree.facts[0].split() if word.isdigit()][:2]
    assert threads >= before + 3


@pytest.mark.alone
def test_work_while_nothing_is_asked_is_suspicious(evaluate: Evaluate) -> None:
    top = """
import threading

def spin():
    while True:
        pass

threading.Thread(target=spin, daemon=True).start()
"""
    several = replace(FAST, rounds=24)
    found = evaluate(forward("return y", top=top), config=several)
    assert of(found, Layer.TREE).weight is Weight.SUSPICIOUS
    assert of(found, Layer.TREE) in found.suspicions


SEEN = Observation("task", "candidate")


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (SEEN, Kind.REWRITE),
        (replace(SEEN, language=Language.CUDA), Kind.KERNEL),
        (replace(SEEN, source=Scan(graphs=True)), Kind.GRAPH),
        (replace(SEEN, source=Scan(graphs=True), language=Language.CUDA), Kind.KERNEL),
        (replace(SEEN, runtime=RuntimeClaim(flags=("grad: False -> True",))), Kind.REWRITE),
        (replace(SEEN, runtime=RuntimeClaim(flags=("cudnn.benchmark: a -> b",))), Kind.FLAGS),
        (
            replace(SEEN, language=Language.CUDA, provenance=Provenance("device", 1.0, 0.1)),
            Kind.REWRITE,
        ),
        (
            replace(SEEN, language=Language.CUDA, provenance=Provenance("device", 1.0, 0.9)),
            Kind.KERNEL,
        ),
        (replace(SEEN, provenance=Provenance("host", 1.0, 0.9)), Kind.REWRITE),
        (
            replace(SEEN, language=Language.CPP, provenance=Provenance("host", 0.0, 0.0)),
            Kind.KERNEL,
        ),
    ],
)
def test_the_kind_of_a_candidate_follows_flags_then_provenance_then_language(
    seen: Observation, kind: Kind
) -> None:
    assert layers.kind(seen) is kind


def test_memory_beyond_twice_the_references_is_noted() -> None:
    seen = replace(
        SEEN, tree=TreeFacts(peak_bytes=3 << 30), reference_tree=TreeFacts(peak_bytes=1 << 30)
    )
    assert layers.memory(seen)[0].weight is Weight.NOTED
    assert layers.peaks(seen) == (3 << 30, 1 << 30)
    device = replace(seen, reference_tree=TreeFacts(peak_device_bytes=5))
    assert layers.peaks(device) == (None, None)
    both = replace(device, tree=TreeFacts(peak_bytes=3 << 30, peak_device_bytes=7))
    assert layers.peaks(both) == (7, 5)
    within = replace(seen, tree=TreeFacts(peak_bytes=1 << 30))
    assert layers.memory(within)[0].weight is Weight.CLEAN
