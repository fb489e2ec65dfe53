"""Registers and spills as a candidate's process reports them: claims that reach its author."""

from types import ModuleType
from typing import Any

import pytest

from sandbox.evidence import Layer, Weight
from sandbox.judging.layers import runtime
from sandbox.observation import RuntimeClaim
from sandbox.subjects.claims import runtime_claim
from sandbox.worker.kernels import described


def kernel(**attributes: Any) -> object:
    return type("RawKernel", (), {"shared_size_bytes": 0, **attributes})()


def module(**names: object) -> ModuleType:
    made = ModuleType("candidate")
    vars(made).update(names)
    return made


def test_each_kernel_among_the_modules_names_is_described_once():
    spilling = kernel(num_regs=255, local_size_bytes=48, shared_size_bytes=1024)
    lean = kernel(num_regs=32, local_size_bytes=0)
    found = described(module(FAST=lean, ALL={"slow": spilling}, other=3, name="RawKernel"))
    assert found == [
        "kernel FAST: 32 registers a thread, no local memory, 0 bytes shared; "
        "registers allow 2048 threads",
        "kernel ALL: 255 registers a thread, 48 bytes of local memory, 1024 bytes shared; "
        "registers allow 257 threads",
    ]


def test_objects_that_only_look_like_kernels_are_left_out():
    class RawKernel:
        @property
        def num_regs(self) -> int:
            raise SystemError("no")

    assert described(module(A=RawKernel(), B=kernel(num_regs="many", local_size_bytes=0))) == []
    assert described(None) == []


def test_kernels_are_noted_without_speaking_against_the_candidate():
    claim = runtime_claim({"kernels": ["kernel f: 32 registers a thread", 7], "patched": None})
    assert claim.kernels == ("kernel f: 32 registers a thread", "7")
    [evidence] = runtime(RuntimeClaim(kernels=claim.kernels).joined(claim))
    assert (evidence.layer, evidence.weight) == (Layer.RUNTIME, Weight.CLEAN)
    assert evidence.facts == claim.kernels


@pytest.mark.parametrize("peak", [10**4000, -1, 2.0, "much"])
def test_memory_that_no_device_has_is_no_claim(peak: object) -> None:
    assert runtime_claim({"peak_device_bytes": peak}).peak_device_bytes is None
    assert runtime_claim({"peak_device_bytes": 5 << 30}).peak_device_bytes == 5 << 30
