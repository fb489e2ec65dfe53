"""Processes of references and compilers that serve one task after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernelbench.suite import load_tasks
from sandbox.evaluator import LocalEvaluator
from sandbox.pairs.pair import ProcessPair
from sandbox.subjects.plan import Plan
from sandbox.types import Candidate, EvalConfig, Language, Status

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def test_references_and_compilers_serve_the_next_task_and_no_reported_figure(
    evaluator: LocalEvaluator, config: EvalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    start = ProcessPair.start

    def started(pair: ProcessPair, *arguments: Any, **options: Any) -> Plan:
        pids.extend((pair.reference.worker.pid, pair.candidate.worker.pid))
        return start(pair, *arguments, **options)

    monkeypatch.setattr(ProcessPair, "start", started)
    config = replace(config, baselines=("compile", "cuda_graph"))
    served = []
    for name in ("builtin/sigmoid", "builtin/softmax"):
        [task] = load_tasks(name, "cuda")
        prepared = evaluator.prepare(task, config)
        assert all(b.speedup is not None for b in prepared.baselines), prepared.baselines
        for stand in (evaluator._stand, evaluator._compilers):
            stand.settle()
        served.append(set(pids))
        pids.clear()
    references = {worker.pid for worker in evaluator._stand.ready._used}
    compilers = {worker.pid for worker in evaluator._compilers.ready._used}
    assert references & served[0] & served[1]
    assert compilers & served[0] & served[1]
    own = task.source.replace("class Model(", "class ModelNew(")
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, own), config)
    assert found.status is Status.PASSED, found.detail
    assert not (references | compilers) & set(pids)
