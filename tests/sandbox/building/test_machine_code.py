"""Programs are equal by what they are compiled to, whatever their names are."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from sandbox.building.machine_code import digest_of
from sandbox.evaluator import LocalEvaluator
from sandbox.evidence import MACHINE_CODE, Layer
from sandbox.types import Candidate, Language, Status
from tests.sandbox.conftest import FAST, SCALE, task_of

SOURCE = """
extern "C" void scale(float* x, long n) {
  for (long i = 0; i < n; i++) x[i] = x[i] * 2.5f + 1.0f;
}
"""
RENAMED = """
// The same loop.
extern "C" void scaled(float* values, long count) {
  for (long k = 0; k < count; k++) values[k] = values[k] * 2.5f + 1.0f;
}
"""
MODEL = """
import ctypes
import torch
from torch.utils.cpp_extension import load_inline

CODE = '''
extern "C" void scale(const float* in, float* {out}, long n, float dimensions, float factor) {{
  for (long i = 0; i < n; i++) {out}[i] = {value} + (in[i] > 0 ? in[i] : 0) * factor;
}}
'''
LIBRARY = ctypes.CDLL(
    load_inline("scale", cpp_sources=[CODE], is_python_module=False, no_implicit_headers=True)
)
LIBRARY.scale.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_long] + [ctypes.c_float] * 2


class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        x, y = x.contiguous(), torch.empty(x.shape)
        LIBRARY.scale(x.data_ptr(), y.data_ptr(), x.numel(), x.dim(), self.factor)
        return y
"""


def compiled(folder: Path, source: str) -> list[Path]:
    folder.mkdir()
    (folder / "a.cpp").write_text(source)
    command = ["g++", "-O2", "-shared", "-fPIC", "a.cpp", "-o", "a.so"]
    subprocess.run(command, cwd=folder, check=True)
    return [folder]


def test_names_and_comments_are_no_machine_code_and_constants_are(tmp_path: Path) -> None:
    first = digest_of(compiled(tmp_path / "first", SOURCE))
    assert first == digest_of(compiled(tmp_path / "renamed", RENAMED))
    assert first != digest_of(compiled(tmp_path / "other", SOURCE.replace("2.5f", "2.25f")))
    assert first != digest_of(compiled(tmp_path / "minus", SOURCE.replace("+ 1.0f", "- 1.0f")))


def test_what_nvrtc_made_lies_behind_its_symbols(tmp_path: Path) -> None:
    (folder,) = compiled(tmp_path / "first", SOURCE)
    cubin = (folder / "a.so").read_bytes()
    (tmp_path / "made").mkdir()
    (tmp_path / "made/x.made").write_bytes(b'[null, "hash"]\n' + cubin)
    assert digest_of([tmp_path / "made"]) == digest_of([folder])


@pytest.mark.parametrize("spoilt", ["cut", "wild", "empty", "text"])
def test_what_is_no_whole_library_counts_as_it_is(tmp_path: Path, spoilt: str) -> None:
    (folder,) = compiled(tmp_path / "first", SOURCE)
    whole = (folder / "a.so").read_bytes()
    wild = whole[:40] + (2**63).to_bytes(8, "little") + whole[48:]
    content = {"cut": whole[: len(whole) // 2], "wild": wild, "empty": b"", "text": b".version 8"}
    (folder / "a.so").write_bytes(content[spoilt])
    first = digest_of([folder])
    (folder / "a.so").write_bytes(content[spoilt] + b" ")
    assert first
    assert first != digest_of([folder])


def header(size: int, count: int) -> bytes:
    head = b"\x7fELF\x02\x01" + bytes(34) + (64).to_bytes(8, "little") + bytes(10)
    return head + b"".join(n.to_bytes(2, "little") for n in (size, count, 0))


@pytest.mark.parametrize("spoilt", ["overlap", "one header", "many", "names"])
def test_tables_without_end_take_no_time(tmp_path: Path, spoilt: str) -> None:
    large = bytes(24) + bytes(8) + (1 << 21).to_bytes(8, "little") + bytes(24)
    names = (0).to_bytes(4, "little") + bytes(20) + (64).to_bytes(8, "little")
    names += (16 << 20).to_bytes(8, "little") + bytes(24)
    content = {
        "overlap": header(64, 60000) + large * 60000,
        "one header": header(0, 65535) + large,
        "many": header(64, 65535) + bytes(64) * 65535,
        "names": header(64, 2000) + names + large[:32] * 4000 + b"\xff" * (16 << 20),
    }
    (tmp_path / "a.so").write_bytes(content[spoilt])
    start = time.perf_counter()
    assert digest_of([tmp_path])
    assert time.perf_counter() - start < 5


def test_more_than_a_candidate_compiles_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = compiled(tmp_path / "first", SOURCE)
    assert digest_of(folders)
    monkeypatch.setattr("sandbox.building.machine_code.MOST_BYTES", 1000)
    assert digest_of(folders) == ""
    monkeypatch.setattr("sandbox.building.machine_code.MOST_BYTES", 1 << 30)
    monkeypatch.setattr("sandbox.building.machine_code.MOST_FILES", 0)
    assert digest_of(folders) == ""


def test_nothing_compiled_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("pass")
    assert digest_of([tmp_path]) == ""


@pytest.mark.slow
def test_an_evaluation_says_what_was_compiled(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE.replace("+ 1.0", "+ 1.5"))

    def line(value: str, out: str) -> str:
        source = MODEL.format(value=value, out=out)
        found = evaluator.evaluate(task, Candidate(task.id, Language.CPP, source), FAST)
        assert found.status is Status.PASSED, found.detail
        facts = [f for e in found.evidence if e.layer is Layer.RUNTIME for f in e.facts]
        (told,) = [fact for fact in facts if fact.startswith(MACHINE_CODE)]
        return told

    assert (
        line("1.5f", "out") == line("1.5f", "result") != line("(0.5f + dimensions * 0.5f)", "out")
    )


def test_what_is_not_compiled_says_nothing_of_it(evaluator: LocalEvaluator) -> None:
    task = task_of(SCALE.replace("+ 1.0", "+ 1.5"))
    source = task.source.replace("class Model(", "class ModelNew(")
    found = evaluator.evaluate(task, Candidate(task.id, Language.TORCH, source), FAST)
    facts = [f for e in found.evidence for f in e.facts]
    assert not [fact for fact in facts if fact.startswith(MACHINE_CODE)]
