"""Of a host's GPUs a candidate can open its own alone, whichever that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sandbox.evaluator import LocalEvaluator
from sandbox.machine.spawn import own_gpu
from sandbox.types import Candidate, EvalConfig, Language, Status
from sandbox.walls.devices import gpu_devices
from tests.gpu.test_languages import TASK, source

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

OPENS = """
import os
def opened():
    for path in PATHS:
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError:
            continue
        yield path
raise RuntimeError(f"opened {sorted(opened())} of {torch.cuda.device_count()}")
"""


@pytest.mark.parametrize("last", [False, True], ids=["the first GPU", "the last GPU"])
def test_a_candidate_runs_on_its_own_gpu_and_opens_no_other(
    config: EvalConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture, last: bool
) -> None:
    gpus = torch.cuda.device_count()
    if gpus < 2:
        pytest.skip("needs two GPUs")
    index = gpus - 1 if last else 0
    _, devices = own_gpu(index)
    own = [str(path) for path in devices if path.name[-1].isdigit()]
    assert len(own) == 1
    assert len(devices) < len(gpu_devices())
    evaluator = LocalEvaluator("cuda", index, cache_dir=tmp_path)
    try:
        task = replace(TASK, id="own-device")
        honest = Candidate(task.id, Language.CUDA, source("cuda"))
        assert evaluator.evaluate(task, honest, config).status is Status.PASSED
        every = [str(path) for path in gpu_devices() if path.name[-1].isdigit()]
        copied = task.source.replace("class Model(", "class ModelNew(")
        asks = copied + OPENS.replace("PATHS", repr(every))
        found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, asks), config)
    finally:
        evaluator.close()
    assert f"opened {own} of 1" in found.detail + found.stderr
    assert "every GPU" not in caplog.text
