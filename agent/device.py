"""Which device a campaign measures on: this machine's, or those of a cluster that it joins."""

from __future__ import annotations

from dataclasses import replace

from agent.config import OptimizeConfig
from sandbox.building.toolchain import require_compilers
from sandbox.doctor import resolve_device
from sandbox.errors import ConfigError
from sandbox.types import Language


def resolved(config: OptimizeConfig) -> OptimizeConfig:
    """The same with `cpu` or `cuda`. GPUs of a cluster need not be this machine's, whose part is to
    propose and to decide, as on a head of Kubernetes; weights of ours sample here.

    Raises DeviceError for a GPU that is not there, and where kernels for this CPU could not be
    compiled here; ConfigError for what is no device.
    """
    if config.ray_address is not None and config.device == "cuda" and config.local is None:
        return config
    device = resolve_device(config.device)
    if config.gpu_type and device == "cpu":
        raise ConfigError(f"gpu_type {config.gpu_type}: the device is the CPU; leave it out")
    if device == "cpu" and config.ray_address is None:
        require_compilers(Language.CPP)  # what every proposer writes there
    return replace(config, device=device)
