"""One evaluator on the GPU for all GPU tests, with a protocol short enough for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sandbox.evaluator import LocalEvaluator
from sandbox.types import EvalConfig

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
"""Else torch.compile keeps a pool of processes beside what is timed."""


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")


@pytest.fixture(scope="session")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEvaluator]:
    cache: Path = tmp_path_factory.mktemp("cache")
    made = LocalEvaluator("cuda", cache_dir=cache)
    yield made
    made.close()


@pytest.fixture(scope="session")
def config() -> EvalConfig:
    return EvalConfig(rounds=6, min_pairs=3, max_pairs=3, baselines=())
