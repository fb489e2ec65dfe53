"""What accelerate's launcher says of FSDP and DeepSpeed, in this trainer's own settings."""

import json
import os

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from rl.config import TrainConfig
from rl.launched import as_launched
from sandbox.errors import ConfigError

FSDP, DEEPSPEED = "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"
SAID = "ACCELERATE_DEEPSPEED_"


def said(monkeypatch, used, variables):
    for name, value in {used: "true", **variables}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("used", "variables", "spread", "checkpointing"),
    [
        (FSDP, {}, True, False),
        (FSDP, {"FSDP_VERSION": "2", "FSDP_SHARDING_STRATEGY": "NO_SHARD"}, True, False),
        (FSDP, {"FSDP_SHARDING_STRATEGY": "NO_SHARD"}, False, False),
        (FSDP, {"FSDP_ACTIVATION_CHECKPOINTING": "true"}, True, True),
        (DEEPSPEED, {}, True, False),
        (DEEPSPEED, {f"{SAID}ZERO_STAGE": "3", f"{SAID}CONFIG_FILE": "none"}, True, False),
        (DEEPSPEED, {f"{SAID}ZERO_STAGE": "0"}, False, False),
    ],
    ids=[
        *("first version", "second version", "not spread", "checkpointing"),
        *("accelerate's stage", "stage 3", "stage 0"),
    ],
)
def test_weights_are_spread_as_accelerates_file_has_it(
    used, variables, spread, checkpointing, monkeypatch
):
    said(monkeypatch, used, variables)
    found = as_launched(TrainConfig())
    assert (found.rl.spread, found.gradient_checkpointing) == (spread, checkpointing)
    assert used not in os.environ, "a trainer would spread them once more"
    assert as_launched(TrainConfig()) == TrainConfig()


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_an_update_is_not_computed_otherwise_than_replies_were_sampled(precision, monkeypatch):
    """Under bf16 in accelerate's file trainers of float32 weights were, though it was not read."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
    with pytest.raises(ConfigError, match=f"mixed_precision is {precision}.*take mixed_precision"):
        as_launched(TrainConfig())
    coarse = TrainConfig(model="FOLDER", dtype="bfloat16")
    if precision == "bf16":
        assert as_launched(coarse) == coarse
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert as_launched(coarse) == coarse


@pytest.mark.parametrize(("zero", "spread"), [({"stage": 3}, True), ({"stage": 0}, False)])
def test_a_deepspeed_file_says_the_stage(zero, spread, tmp_path, monkeypatch):
    file = tmp_path / "zero.json"
    file.write_text(json.dumps({"zero_optimization": zero, "train_batch_size": "auto"}))
    said(monkeypatch, DEEPSPEED, {f"{SAID}CONFIG_FILE": str(file)})
    assert as_launched(TrainConfig()).rl.spread is spread


@pytest.mark.parametrize(
    ("used", "variables"),
    [
        (FSDP, {"FSDP_OFFLOAD_PARAMS": "true"}),
        (DEEPSPEED, {f"{SAID}OFFLOAD_PARAM_DEVICE": "cpu"}),
        (DEEPSPEED, {f"{SAID}OFFLOAD_OPTIMIZER_DEVICE": "nvme"}),
    ],
)
def test_weights_in_the_hosts_memory_are_refused(used, variables, monkeypatch):
    said(monkeypatch, used, variables)
    with pytest.raises(ConfigError, match="switch it off"):
        as_launched(TrainConfig())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"optimizer": {"type": "Adam"}}', "a section optimizer; .* take it out"),
        ('{"zero_optimization": {"offload_param": {"device": "cpu"}}}', "^offload_param computes"),
        ("[]", "expected an object"),
        ("{", "no DeepSpeed config that can be read"),
        (None, "no DeepSpeed config that can be read"),
    ],
)
def test_a_deepspeed_file_that_cannot_be_followed_is_told(text, why, tmp_path, monkeypatch):
    file = tmp_path / "zero.json"
    if text is not None:
        file.write_text(text)
    said(monkeypatch, DEEPSPEED, {f"{SAID}CONFIG_FILE": str(file)})
    with pytest.raises(ConfigError, match=why):
        as_launched(TrainConfig())
