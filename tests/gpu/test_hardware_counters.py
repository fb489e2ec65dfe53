"""Hardware counters of a CUDA candidate reach its evaluation, where the driver shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.prompts.feedback import counter_claims
from sandbox.evaluator import LocalEvaluator
from sandbox.evidence import Layer
from sandbox.types import Candidate, EvalConfig, Language
from sandbox.worker.counters import REASONS
from tests.gpu.test_languages import TASK, source

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def test_dram_traffic_and_occupancy_of_a_kernel_are_told(
    evaluator: LocalEvaluator, config: EvalConfig
) -> None:
    mine = Candidate(TASK.id, Language.CUDA, source("cuda"))
    found = evaluator.evaluate(TASK, mine, replace(config, profile_searches=True), to_beat=1e-3)
    assert found.passed, found.detail
    told = {line.split()[1].rstrip(":"): line.split() for line in counter_claims(found)}
    facts = [f for e in found.evidence if e.layer is Layer.PROVENANCE for f in e.facts]
    if not told and any(reason in fact for reason in REASONS.values() for fact in facts):
        pytest.skip(facts[-1])
    assert {"dram__bytes_read.sum", "gpu__time_duration.sum"} <= set(told), facts
    asked = replace(config, profile_searches=True, hardware_counters=False)
    assert not list(counter_claims(evaluator.evaluate(TASK, mine, asked, to_beat=1e-3)))
    occupancy = float(told["sm__warps_active.avg.pct_of_peak_sustained_active"][-2])
    assert 0 < occupancy <= 100
