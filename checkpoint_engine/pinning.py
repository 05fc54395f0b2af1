"""Page-locked slots: a device copies into and out of them by itself, at the full speed of its link, instead of through a small buffer of its driver.

CUDA locks memory that somebody else allocated. torch_npu has no public call for that, so on Ascend slots stay ordinary memory: copies are right and
slower. Never run on a device so far.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from shared_arena import Arena

if TYPE_CHECKING:
    import numpy as np


class DeviceRuntime(Protocol):
    def lock(self, memory: np.ndarray) -> bool:
        """False: the system does not let us (no rights, no room); copies then go as they do for any memory."""

    def unlock(self, memory: np.ndarray) -> None: ...


class Cuda:
    def lock(self, memory: np.ndarray) -> bool:
        import torch

        return int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0

    def unlock(self, memory: np.ndarray) -> None:
        import torch

        torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)


def runtime_in_use() -> DeviceRuntime | None:
    """Of the device that this process computes on; None without one. Never starts one up: that takes device memory and seconds."""
    torch = sys.modules.get("torch")
    return Cuda() if torch is not None and torch.cuda.is_initialized() else None


class Pins:
    """What this process has locked. Memory is unlocked before its mapping can go: the array kept here keeps it."""

    def __init__(self) -> None:
        self._locked: dict[bytes, tuple[DeviceRuntime, np.ndarray]] = {}

    def hold(self, arena: Arena, runtime: DeviceRuntime | None) -> bool:
        """Lock the arena as it is mapped now (an older mapping of it is unlocked). True when it is locked."""
        if runtime is None or arena.nbytes == 0:
            return False
        before = self._locked.get(arena.nonce)
        if before is not None and before[1] is arena.array:
            return True
        self._unlock(arena.nonce)
        if not runtime.lock(arena.array):
            return False
        self._locked[arena.nonce] = runtime, arena.array
        return True

    def keep_only(self, nonces: Collection[bytes]) -> None:
        for nonce in self._locked.keys() - set(nonces):
            self._unlock(nonce)

    def close(self) -> None:
        self.keep_only(())

    def _unlock(self, nonce: bytes) -> None:
        if nonce in self._locked:
            runtime, memory = self._locked.pop(nonce)
            runtime.unlock(memory)
