"""Where a candidate's time went: names to origins, and a real profile of a faster candidate."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from sandbox.evaluator import LocalEvaluator
from sandbox.evidence import Kind, Layer
from sandbox.judging.provenance import CALL, base_name, origin, provenance
from sandbox.types import Candidate, Language, Status
from sandbox.worker.profile import profile
from tests.sandbox.conftest import FAST, Evaluate, task_of

KERNELS = ("mine", "triton_mine")


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("mine", "own"),
        ("void mine<float, 4>(float const*, int)", "own"),
        ("void (anonymous namespace)::mine(float*)", "own"),
        ("triton_mine", "own"),
        ("triton_poi_fused_add_relu_0", "inductor"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::relu>(int)", "torch"),
        ("ampere_sgemm_128x64_tn", "cuBLAS"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "cuBLAS"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "cuBLAS"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(...)", "cuDNN"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(...)", "CUTLASS"),
        ("somebody_elses", "unknown"),
    ],
)
def test_a_kernels_name_tells_its_origin(name: str, where: str) -> None:
    assert origin("device", name, KERNELS) == where


def test_shares_are_of_the_whole() -> None:
    rows = [["mine", 3e-6], ["ampere_sgemm_x", 1e-6]]
    found = provenance("device", {"rows": rows}, KERNELS)
    assert found.own_share == pytest.approx(0.75)
    assert found.names[0] == ("own", "mine", pytest.approx(0.75))
    host = provenance("host", {"rows": [["aten::mm", 1e-6], [CALL, 1e-6]]}, ())
    assert host.own_share == pytest.approx(0.5)


@pytest.mark.parametrize(
    "claim",
    [{}, {"rows": 3}, {"rows": [1, [], ["a"], ["a", "b"], [3, 1.0]]}, {"rows": [["a", -1.0]]}],
)
def test_a_profile_of_no_known_form_says_nothing(claim: dict[str, object]) -> None:
    found = provenance("device", claim, KERNELS)
    assert found.own_share is None
    assert found.problem


def test_base_names_lose_types_and_namespaces() -> None:
    assert base_name("void space::mine<float>(float*)") == "mine"


def test_time_that_one_of_the_calls_lost_is_nobodys_share() -> None:
    """Such as to another process of a busy machine, while it was in one of torch's operators."""
    calls = iter(range(99))

    def call() -> None:
        size = 1500 if next(calls) == 3 else 4
        torch.mm(torch.ones(size, size), torch.ones(size, size))
        time.sleep(1e-3)

    rows = [[name, seconds] for name, seconds in profile("cpu", call, lambda: None)["rows"]]
    assert {"aten::mm", CALL} <= {name for name, _ in rows}
    share = provenance("host", {"rows": rows}, ()).own_share
    assert share is not None
    assert share > 0.8


def test_labels_of_the_candidates_own_change_no_share() -> None:
    def call() -> None:
        for _ in range(3):
            with torch.profiler.record_function(CALL):
                pass
        torch.mm(torch.ones(300, 300), torch.ones(300, 300))

    rows = profile("cpu", call, lambda: None)["rows"]
    share = provenance("host", {"rows": rows}, ()).own_share
    assert share is not None
    assert share < 0.5


SLOW = """
import torch
import torch.nn as nn


class {name}(nn.Module):
    def forward(self, x):
        for _ in range({times}):
            y = torch.relu(x) + 1.0
        return y


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return []
"""


@pytest.mark.alone
def test_a_faster_candidate_is_profiled_after_it_was_timed(evaluate: Evaluate) -> None:
    found = evaluate(
        SLOW.format(name="ModelNew", times=1), reference=SLOW.format(name="Model", times=60)
    )
    assert found.status is Status.PASSED, found.detail
    seen = next(e for e in found.evidence if e.layer is Layer.PROVENANCE)
    assert any("torch: aten::" in fact for fact in seen.facts)
    assert "of host time outside torch's operators" in seen.facts[0]
    assert found.kind is Kind.REWRITE
    assert found.seconds["profile"] > 0


@pytest.mark.alone
def test_a_candidate_that_breaks_under_the_profiler_keeps_its_verdict(evaluate: Evaluate) -> None:
    fragile = SLOW.format(name="ModelNew", times=1).replace(
        "        for",
        "        if torch.autograd._profiler_enabled():\n            raise OSError\n        for",
    )
    found = evaluate(fragile, reference=SLOW.format(name="Model", times=60))
    assert found.status is Status.PASSED, found.detail
    seen = next(e for e in found.evidence if e.layer is Layer.PROVENANCE)
    assert seen.facts[0].startswith("not known: ")


@pytest.mark.parametrize(("asked", "share"), [(False, None), (True, 0.0)])
@pytest.mark.slow
def test_in_a_search_the_protocol_may_ask_for_a_profile(
    evaluator: LocalEvaluator, asked: bool, share: float | None
) -> None:
    """Of what is slower, too; what PyTorch alone does is no kernel's share."""
    task = task_of(SLOW.format(name="Model", times=1))
    slower = Candidate(task.id, Language.TORCH, SLOW.format(name="ModelNew", times=20))
    config = replace(FAST, profile_searches=asked, hardware_counters=not asked)
    assert config.id == FAST.id  # a profile comes after the figures
    found = evaluator.evaluate(task, slower, config, to_beat=1.0)
    assert found.status is Status.PASSED, found.detail
    assert found.own_share == share
    assert ("profile" in found.seconds) is asked
