"""Which backend a group gets, from the devices that its members really have. Pure choice: no group is made here.

Versions lie in host memory everywhere. gloo sends them from there and writes them there. nccl and hccl send device memory only, so each member has a
pair of buckets on its device: host slot → bucket → the other devices → host slot. That is worth it where devices are joined by more than a network.

A device is found, never started up, unless its backend is asked for by name: starting one takes seconds and device memory.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

Backend = Literal["gloo", "nccl", "hccl"]
Setting = Literal["auto", "gloo", "nccl", "hccl"]
"""`auto`: nccl or hccl where every member computes on a device of its own of that kind, else gloo."""

KINDS: dict[str, str] = {"gloo": "cpu", "nccl": "cuda", "hccl": "npu"}
"""Where a backend's operations read and write, as torch calls it."""

_VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}


class Device(msgspec.Struct, frozen=True, array_like=True):
    """What a member computes on. `unit`: the same text for the same physical device only; `index`: as its own process counts."""

    kind: str = "cpu"
    unit: str = ""
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index} ({self.unit})"


CPU = Device()


def check_setting(setting: str) -> str:
    if setting not in get_args(Setting):
        raise ValueError(f"backend = {setting!r} is unknown: no group could be made; use one of {', '.join(get_args(Setting))}")
    return setting


def own_device(setting: str) -> Device:
    """Of this process, for groups of `setting`. Raises ValueError where it asks for a device by name and there is none."""
    if KINDS.get(setting) == "cpu":
        return CPU
    kinds = [kind for backend, kind in KINDS.items() if kind != "cpu" and setting in ("auto", backend)]
    found = next((device for kind in kinds if (device := _in_use(kind))), None)
    if found is not None or setting == "auto":
        return found or CPU
    return _started(setting, kinds[0])


def choose(setting: str, own: Device, members: Mapping[str, Device]) -> tuple[str, tuple[str, ...]]:
    """The backend, and who of `members` can be in a group of it, sorted: the others pull. `own`: the sender's device."""
    if setting == "auto":
        setting = next((backend for backend, kind in KINDS.items() if kind != "cpu" and _all_apart(kind, own, members)), "gloo")
    kind = KINDS[setting]
    if kind == "cpu":
        return setting, tuple(sorted(members))
    taken, able = {own.unit}, []
    for name, device in sorted(members.items()):
        if device.kind == kind and device.unit not in taken:  # two ranks on one device: nccl refuses, hccl hangs
            taken.add(device.unit)
            able.append(name)
    return setting, tuple(able)


def _all_apart(kind: str, own: Device, members: Mapping[str, Device]) -> bool:
    devices = [own, *members.values()]
    return all(device.kind == kind for device in devices) and len({device.unit for device in devices}) == len(devices)


def _in_use(kind: str) -> Device | None:
    """The device that this process computes on: of several, the one where it holds most memory (which one is *current* differs by thread)."""
    module = getattr(sys.modules.get("torch"), kind, None)  # torch.npu is there once torch_npu was imported
    if module is None or not module.is_initialized():
        return None
    return _device(kind, module, max(range(module.device_count()), key=module.memory_reserved))


def _started(backend: str, kind: str) -> Device:
    try:
        torch = importlib.import_module("torch")
        if kind == "npu":
            importlib.import_module("torch_npu")
        module = getattr(torch, kind)
        if module.is_available():
            return _device(kind, module, module.current_device())
        why = f"torch.{kind} finds none"
    except (ImportError, AttributeError, RuntimeError) as error:  # no torch_npu, a torch built without, a driver that fails
        why = f"{type(error).__name__}: {error}"
    raise ValueError(f"backend = {backend!r} needs a {kind} device in this process, and there is none ({why}): no group could be made; use 'auto'")


def _device(kind: str, module: Any, index: int) -> Device:
    uuid = getattr(module.get_device_properties(index), "uuid", None)
    return Device(kind, str(uuid) if uuid is not None else _place(kind, index), index)


def _place(kind: str, index: int) -> str:
    """Host and number of a device that does not say who it is."""
    visible = [entry.strip() for entry in os.environ.get(_VISIBLE[kind], "").split(",") if entry.strip()]
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{visible[index] if index < len(visible) else index}"
