"""Inductor's choice of configurations can be put off to a call that is alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sandbox.baselines.compiling import TUNED
from sandbox.worker.wrapped import untuned

pytestmark = pytest.mark.gpu


def test_configurations_are_timed_by_the_first_call_that_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x = torch.randn(4096, 8192, device="cuda")

    @torch.compile
    def called(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, 1).amax(1)

    def choices() -> list[Path]:
        return list(tmp_path.rglob(f"*{TUNED}"))

    expected = torch.softmax(x, 1).amax(1)
    with untuned():
        torch.testing.assert_close(called(x), expected)
        torch.testing.assert_close(called(x), expected)
    assert any(tmp_path.rglob("*.py"))
    assert not choices()
    torch.testing.assert_close(called(x), expected)
    assert choices()
