"""What the trusted worker finds out about a task, without a process around it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from sandbox.worker.reference import ReferenceSession
from sandbox.worker.weights import change_part, direction, randomise, shake

CALL_S = 0.004


class Queue(ReferenceSession):
    """A device that takes calls at once and works them off when it is waited for."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.made = self.queued = 0
        self.model = self.launch

    def launch(self) -> None:
        self.made += 1
        self.queued += 1

    def synchronize(self) -> None:
        time.sleep(CALL_S * self.queued)
        self.queued = 0


def test_calls_that_only_queue_are_not_counted_by_the_hosts_clock() -> None:
    device = Queue()
    assert CALL_S <= device.latency([]) < 3 * CALL_S
    assert device.made <= 12


@pytest.mark.parametrize("positive", [False, True])
def test_a_part_of_one_parameter_changes_and_nothing_else(positive: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.BatchNorm1d(256))
    if positive:
        for parameter in model.parameters():
            parameter.detach().abs_().add_(0.1)
    for seed in range(20):
        before = {name: t.clone() for name, t in model.state_dict().items()}
        assert change_part(model, seed)
        changed = {n: (t != before[n]).sum() for n, t in model.state_dict().items()}
        [(name, count)] = [(name, int(count)) for name, count in changed.items() if count]
        assert name in dict(model.named_parameters())
        assert 0 < count <= max(1, before[name].numel() // 64)
        assert not positive or bool((model.state_dict()[name] > 0).all())


def test_new_weights_have_other_signs_in_part_where_they_have_both() -> None:
    model = torch.nn.Linear(64, 256)
    model.register_buffer("variance", torch.rand(256) + 0.1)
    model.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))
    model.register_buffer("grid", torch.linspace(-1, 1, 33))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    randomise(model, 3)
    flipped = {
        name: int((tensor.sign() != before[name].sign()).sum())
        for name, tensor in model.state_dict().items()
    }
    assert 1 <= flipped.pop("weight") <= 256 * 64 // 64
    assert 1 <= flipped.pop("bias") <= 256 // 64
    assert set(flipped.values()) == {0}


def test_new_values_keep_signs_infinities_and_order() -> None:
    torch.manual_seed(0)
    signed = torch.randn(1 << 20)
    before = signed.clone()
    assert shake(signed)
    assert torch.equal(signed.sign(), before.sign())
    assert not torch.equal(signed, before)
    mask = torch.triu(torch.full((512, 512), -torch.inf), 1)
    hidden = mask.clone()
    assert not shake(mask), "no other value is told"
    assert torch.equal(mask, hidden)
    for rising in (torch.linspace(-2, 2, 64), torch.linspace(0.1, 1, 64).repeat(3, 1)):
        for flip in (False, True):
            ordered = rising.flip(-1) if flip else rising.clone()
            assert shake(ordered)
            assert direction(ordered) is flip
            assert not torch.equal(ordered, rising.flip(-1) if flip else rising)
    assert direction(torch.ones(8)) is None
    assert direction(torch.tensor([1.0, 3.0, 2.0])) is None
    assert direction(torch.tensor(1.0)) is None


def test_without_parameters_there_is_no_part_to_change() -> None:
    assert not change_part(torch.nn.Sequential(), 1)
    assert not change_part(torch.nn.PReLU(1), 1)


def test_parameters_that_change_in_part_again_and_again_stay_of_their_size() -> None:
    layer = torch.nn.BatchNorm1d(64)
    for seed in range(2000):
        change_part(layer, seed)
    assert layer.weight.min() > 0
    assert abs(float(layer.weight.detach().log2().mean())) < 2
