"""The platform "cpu" as verl's registry takes it. Ray hands out "GPU"s, which are then only a number: `ray.init(num_cpus=32, num_gpus=4)`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from recipes.verl.platform.device_module import DeviceModule

_MODULE = DeviceModule()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return _MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never, so that only VERL_PLATFORM=cpu takes it: found by verl's search, it would be taken by a driver without a GPU on a cluster of GPUs,
        and by every actor of Ray that has none."""
        return False

    def current_device(self) -> str:  # type: ignore[override]  # what verl calls tensor.to with
        return _MODULE.current_device()

    def device_count(self) -> int:
        return torch.cpu.device_count()

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Everything has happened when a call returns."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The allocator has none."""

    def empty_cache(self) -> None:
        """The allocator keeps nothing."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """There is no device to profile."""

    def profiler_stop(self) -> None:
        """There is no device to profile."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Weights go to the rollout through shared memory."""
        return False

    def cudart(self) -> Any:
        return None
