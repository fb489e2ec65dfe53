"""A problem for which a GPU has no room is scored at a smaller batch, where that is asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import warpsmith

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
LEFT_BYTES = 10 << 30
WHOLE = 64
"""Of 64 MiB each: two sides' inputs and outputs alone take 16 GiB."""
PROBLEM = f"""
import torch
from torch import nn

batch_size = {WHOLE}


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * torch.sigmoid(x)


def get_inputs():
    return [torch.rand(batch_size, 1 << 24)]


def get_init_inputs():
    return []
"""


def test_a_problem_without_room_on_the_gpu_is_scored_at_a_smaller_batch(tmp_path: Path) -> None:
    for folder, text in {
        "problems": PROBLEM,
        "kernels": PROBLEM.replace("class Model(", "class ModelNew("),
    }.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "gated.py").write_text(text)
    preset = tmp_path / "short.yaml"
    preset.write_text("{baselines: [], rounds: 3, min_pairs: 2, max_pairs: 2}")
    given = {"device": "cuda", "preset": str(preset), "engine": "local"}
    suite = [str(tmp_path / "problems")]
    taken = torch.empty(torch.cuda.mem_get_info()[0] - LEFT_BYTES, dtype=torch.uint8, device="cuda")
    try:
        whole = warpsmith.bench(tmp_path / "kernels", suite, out=tmp_path / "out", **given)
        reason = whole.not_scored["file/gated"]
        assert "one input set needs" in reason or "OutOfMemoryError" in reason
        report = warpsmith.bench(
            tmp_path / "kernels", suite, out=tmp_path / "out", fit_memory=True, **given
        )
    finally:
        del taken
        torch.cuda.empty_cache()
    [size] = report.scaled.values()
    found = re.search(r"batch_size (\d+) of (\d+)", size)
    assert found, size
    assert (int(found[2]), 1 <= int(found[1]) < WHOLE) == (WHOLE, True)
    assert report.scaled_figures is not None
    assert (report.scaled_figures.tasks, report.scaled_figures.correct) == (1, 1)
    assert report.all is None or report.all.tasks == 0
