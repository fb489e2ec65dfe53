"""Workers ask for no kind of vector instructions that Inductor does not generate for."""

from __future__ import annotations

import functools
import platform
import runpy
from typing import Any

import pytest
from torch._inductor import config, cpu_vec_isa

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="Inductor has one kind on other processors"
)


class Kind:
    """One that every CPU has the flags for, and whose probe passes or fails. Counts its probes."""

    def __init__(self, name: str, bits: int, passes: bool) -> None:
        self.name, self.bits, self.passes = name, bits, passes
        self.asked = 0

    def __str__(self) -> str:
        return ""

    def __bool__(self) -> bool:
        self.asked += 1
        return self.passes

    def bit_width(self) -> int:
        return self.bits


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """Known to Inductor instead of its own; `vectors` was imported, as by a zygote."""
    found = [Kind("broken", 512, False), Kind("wide", 512, True), Kind("narrow", 256, True)]
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", found)
    fresh = functools.cache(cpu_vec_isa.valid_vec_isa_list.__wrapped__)
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", fresh)
    runpy.run_module("sandbox.worker.vectors")
    return found


def picked() -> Any:
    return cpu_vec_isa.pick_vec_isa()


def test_the_first_kind_that_passes_is_the_last_that_is_asked_for(kinds: list[Kind]) -> None:
    assert picked() is kinds[1]
    assert kinds[0].asked > 0
    assert kinds[2].asked == 0
    assert cpu_vec_isa.supported_vec_isa_list == kinds


def test_a_width_that_is_set_is_found_among_all_kinds(kinds: list[Kind]) -> None:
    with config.patch("cpp.simdlen", 256):
        assert picked() is kinds[2]


def test_a_capability_that_is_set_is_looked_for_among_all_kinds(
    kinds: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kind, "__str__", lambda kind: "avx2" if kind.bits == 256 else "")
    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["avx2"])
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert picked() is kinds[2]
