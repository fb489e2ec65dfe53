"""One evaluator on the GPU for all GPU tests, with a protocol short enough for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sandbox.evaluator import LocalEvaluator
from sandbox.types import EvalConfig


@pytest.fixture(scope="session")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEvaluator]:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    cache: Path = tmp_path_factory.mktemp("cache")
    made = LocalEvaluator("cuda", cache_dir=cache)
    yield made
    made.close()


@pytest.fixture(scope="session")
def config() -> EvalConfig:
    return EvalConfig(rounds=6, min_pairs=3, max_pairs=3, baselines=())
