"""The stream's record: what is kept of a run that does not end as it should."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import stream
from benchmarks.keeping import keep_json
from sandbox.cache import write_text

ROW = {"seconds": {"verify": 0.1, "total": 0.4}, "status": "PASSED", "expected": True}


class Evaluator:
    """Holds nothing."""

    closed = 0

    def __init__(self, device: str, **options: Any) -> None:
        self.facts = SimpleNamespace(environment={"gpu": "none"})
        self._quiet = SimpleNamespace(noise=contextlib.nullcontext)

    def close(self) -> None:
        Evaluator.closed += 1


def rows(count: int) -> Any:
    def run(*_: Any) -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {**ROW, "at_s": float(number)}
        raise RuntimeError("the lane is gone")

    return run


@pytest.mark.parametrize("count", [0, 3, 45])
def test_what_was_judged_is_kept_when_the_stream_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    out = tmp_path / "new" / "stream.json"
    monkeypatch.setattr(stream, "LocalEvaluator", Evaluator)
    monkeypatch.setattr(stream, "run", rows(count))
    monkeypatch.setattr(stream, "admitted", lambda evaluator, tasks: [])
    monkeypatch.setattr(stream, "mixed", lambda *_, **__: [])
    monkeypatch.setattr(sys, "argv", ["stream", "--device", "cpu", "--out", str(out)])
    before = Evaluator.closed
    with pytest.raises(RuntimeError, match="lane"):
        stream.main()
    record = json.loads(out.read_text())
    assert record["candidates"] == len(record["rows"]) == count
    assert Evaluator.closed == before + 1


def test_a_record_is_replaced_as_a_whole(tmp_path: Path) -> None:
    keep_json(tmp_path / "a" / "record.json", {"rows": [1]})
    with pytest.raises(TypeError):
        keep_json(tmp_path / "a" / "record.json", {"rows": [object()]})
    write_text(tmp_path / "a" / "other.txt", "x")
    assert json.loads((tmp_path / "a" / "record.json").read_text()) == {"rows": [1]}
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["other.txt", "record.json"]


def test_a_fault_of_ours_is_no_candidate_a_minute() -> None:
    fault = {"seconds": {"total": 0.01}, "status": "SANDBOX_ERROR", "expected": False}
    found = stream.figures(
        [one | {"at_s": 1.0, "task": "", "kind": "", "detail": ""} for one in (ROW, fault, fault)],
        wall_s=60.0,
        most=1,
    )
    assert (found["candidates"], found["per_minute"], found["median_device_s"]) == (3, 1.0, 0.1)
    assert found["statuses"] == {"PASSED": 1, "SANDBOX_ERROR": 2}
