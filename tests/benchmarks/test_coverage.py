"""What the built-in search covers, told with reasons."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import coverage


def test_every_task_is_covered_or_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "coverage.json"
    suites = ["builtin/softmax", "builtin/sort", "builtin/relu"]
    monkeypatch.setattr(sys, "argv", ["coverage", *suites, "--device", "cpu", "--out", str(out)])
    coverage.main()
    found = json.loads(out.read_text())
    assert (found["tasks"], found["covered"]) == (3, 2)
    assert found["left_out"] == {"no feature template for aten.sort": ["builtin/sort"]}
    assert "2 of 3 tasks have a template" in capsys.readouterr().out
