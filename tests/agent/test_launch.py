"""Where lanes are opened, beside a policy that keeps GPUs for itself."""

from pathlib import Path
from typing import Any, Literal

import pytest

from agent import launch
from agent.config import OptimizeConfig
from agent.device import resolved
from sandbox.errors import ConfigError, DeviceError


@pytest.mark.parametrize(
    ("device", "gpus", "kept", "line"),
    [
        ("cpu", 0, 1, "own_gpu is for a GPU, and the device is cpu; leave it out"),
        (
            "cuda",
            3,
            3,
            "own_gpu keeps 3 of 3 GPUs for the policy, and lanes need one; leave it out to share "
            "one by turns",
        ),
        ("cuda", 4, 3, None),
    ],
)
def test_lanes_need_a_gpu_beside_those_that_are_kept(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, kept: int, line: str | None
) -> None:
    monkeypatch.setattr(launch, "gpu_count", lambda: gpus)
    if line is None:
        launch.refuse_none_left(device, kept)
        return
    with pytest.raises(ConfigError) as told:
        launch.refuse_none_left(device, kept)
    assert str(told.value) == line


@pytest.mark.parametrize(
    ("device", "there"), [("cpu", "a CPU, one lane"), ("cuda", "1 GPU")], ids=["cpu", "cuda"]
)
def test_two_lanes_share_no_device(
    monkeypatch: pytest.MonkeyPatch, device: Literal["cpu", "cuda"], there: str
) -> None:
    monkeypatch.setattr(launch, "gpu_count", lambda: 1)
    config = OptimizeConfig(device=device, engine="local", lanes=2)
    with pytest.raises(ConfigError, match=f"lanes is 2, and this machine has {there}: two lanes"):
        launch.open_engine(config)


@pytest.mark.parametrize(("address", "refused"), [(None, True), ("elsewhere:6379", False)])
def test_what_a_cluster_has_is_not_told_by_this_machine(
    monkeypatch: pytest.MonkeyPatch, address: str | None, refused: bool
) -> None:
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(launch, "gpu_count", lambda: 1)
    monkeypatch.setattr(
        "agent.engines.ray_engine.RayEngine", lambda *_, **more: opened.append(more)
    )
    config = OptimizeConfig(model="local:policy", device="cuda", own_gpu=True, ray_address=address)
    if refused:
        with pytest.raises(ConfigError, match="lanes need one"):
            launch.open_engine(config, 1)
    else:
        launch.open_engine(config, 1)
    assert [more["kept_gpus"] for more in opened] == [1] * (not refused)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"ray_address": "elsewhere:6379"}, False),
        ({}, True),
        ({"ray_address": "elsewhere:6379", "model": "local:policy"}, True),
    ],
    ids=["a cluster's", "this machine's", "a policy's, which samples here"],
)
def test_a_head_without_a_gpu_joins_a_cluster_that_has_some(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], refused: bool
) -> None:
    monkeypatch.setattr("sandbox.doctor.gpu_count", lambda: 0)
    config = OptimizeConfig(device="cuda", **settings)
    if refused:
        with pytest.raises(DeviceError, match="no usable NVIDIA GPU"):
            resolved(config)
    else:
        assert resolved(config) == config


def test_a_kind_of_gpu_is_not_forgotten_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asked for an H200 got figures of the CPU."""
    monkeypatch.setattr("sandbox.doctor.gpu_count", lambda: 0)
    with pytest.raises(ConfigError, match="gpu_type H200: the device is the CPU"):
        resolved(OptimizeConfig(gpu_type="H200"))


@pytest.mark.parametrize("address", [None, "elsewhere:6379"], ids=["here", "on a cluster"])
def test_a_campaign_that_could_compile_nothing_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str | None
) -> None:
    """It tried every candidate, and ended well."""
    monkeypatch.setenv("PATH", str(tmp_path))
    config = OptimizeConfig(device="cpu", ray_address=address)
    if address is None:
        with pytest.raises(DeviceError, match="apt-get install g"):
            resolved(config)
    else:
        assert resolved(config) == config
