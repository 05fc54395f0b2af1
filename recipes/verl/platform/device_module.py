"""What verl takes for `torch.cuda`: torch.cpu, with the functions for memory and random numbers that verl calls and torch.cpu has not."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class DeviceModule(ModuleType):
    """Equal to torch.cpu, for verl compares with it to see that there are no figures of a device. Memory is this process's own, in bytes."""

    def __init__(self) -> None:
        super().__init__("torch.cpu")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def __eq__(self, other: object) -> bool:
        return other is torch.cpu or isinstance(other, DeviceModule)

    def __hash__(self) -> int:
        return hash(torch.cpu)

    def current_device(self) -> str:
        """The text, not a number: verl calls `tensor.to` with it, and 0 would be a CUDA device."""
        return "cpu"

    def get_device_name(self, device: object = None) -> str:
        return "cpu"

    def get_device_properties(self, device: object = None) -> SimpleNamespace:
        return SimpleNamespace(name="cpu", total_memory=self.mem_get_info()[1])

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """(free, all) of the machine."""
        return os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES, os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES

    def memory_allocated(self, device: object = None) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES

    memory_reserved = memory_allocated

    def max_memory_allocated(self, device: object = None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    max_memory_reserved = max_memory_allocated

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def _nothing(self, *arguments: object) -> None:
        """There is no cache to empty, no peak to reset, no share of a device to ask for, no handle to collect."""

    empty_cache = ipc_collect = reset_peak_memory_stats = reset_accumulated_memory_stats = set_per_process_memory_fraction = _nothing
