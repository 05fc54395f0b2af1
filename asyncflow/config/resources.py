"""Settings of the resources: how many workers of each role, on which devices, with how many threads, serving which stages."""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncflow.config.errors import SettingError, as_value
from asyncflow.config.settings import Settings

LOOP_ROLES = ("source", "rollout", "trainer", "publisher")  # roles with a loop of their own; every other role lists its stages
ROLE_OF_STAGE = {"rollout": "rollout", "train": "trainer"}  # the stages that such a role serves
RESERVED_ROLES = ("controller", "shard", "launcher")


class ResourceSettings(Settings, frozen=True):
    """One role's workers. Null removes a role of the defaults."""

    workers: int = 1  # Processes of this role.
    devices: int | Literal["cpu"] | tuple[int, ...] = "cpu"  # "cpu", how many accelerators all workers share out evenly, or their indexes.
    threads: int = 1  # OpenMP and torch threads of each worker; more threads than free cores are slower, not faster.
    stages: tuple[str, ...] = ()  # Stages that the role serves, for roles without a loop of their own.


class ClusterSettings(Settings, frozen=True):
    """The accelerators that `resources.*.devices` counts."""

    kind: Literal["cpu", "cuda", "npu"] = "cpu"  # What an accelerator is here; "cpu": there is none.
    devices: int = 0  # How many there are in all; roles given as counts get consecutive free ones.


def default_resources() -> dict[str, ResourceSettings]:
    """One worker of every role; rewards and advantages share one."""
    return {
        "source": ResourceSettings(),
        "rollout": ResourceSettings(),
        "scorer": ResourceSettings(stages=("reward", "advantage")),
        "actor_forward": ResourceSettings(stages=("actor_forward",)),
        "ref_forward": ResourceSettings(stages=("ref_forward",)),
        "trainer": ResourceSettings(),
        "publisher": ResourceSettings(),
    }


class Place(msgspec.Struct, frozen=True):
    """Where one worker runs."""

    role: str
    name: str  # role-INDEX, stable across restarts
    devices: tuple[int, ...]  # accelerator indexes; () is the CPU
    threads: int


def place(resources: dict[str, ResourceSettings], cluster: ClusterSettings) -> list[Place]:
    """Every worker of the run with its devices: explicit indexes as given, counts from what is left, in the order of the roles.

    Raises SettingError naming the role when indexes overlap, lie outside the cluster, are too few, or do not divide among the workers.
    """
    free = _free_devices(resources, cluster)
    places: list[Place] = []
    for role, settings in resources.items():
        owned = _devices_of(role, settings, free, cluster)
        share = len(owned) // settings.workers
        for index in range(settings.workers):
            devices = tuple(owned[index * share : (index + 1) * share])
            places.append(Place(role, f"{role}-{index}", devices, settings.threads))
    return places


def _free_devices(resources: dict[str, ResourceSettings], cluster: ClusterSettings) -> list[int]:
    """Indexes that no role names."""
    owner: dict[int, str] = {}
    named = {role: settings.devices for role, settings in resources.items() if isinstance(settings.devices, tuple)}
    for role, devices in named.items():
        for device in devices:
            if device in owner:
                taken = {index for others in named.values() for index in others}
                spare = [index for index in range(cluster.devices) if index not in taken]
                raise _shared(role, devices, device, owner, spare[:1], resources[role].workers)
            if not 0 <= device < cluster.devices:
                raise _outside(role, devices, device, cluster)
            owner[device] = role
    return [device for device in range(cluster.devices) if device not in owner]


def _shared(role: str, devices: tuple[int, ...], device: int, owner: dict[int, str], spare: list[int], workers: int) -> SettingError:
    """`device` is named twice; a spare one may take its place."""
    left = [index for index in dict.fromkeys(devices) if owner.get(index) in (None, role) and (index != device or owner[device] == role)] + spare
    return SettingError(
        f"resources.{role}.devices",
        devices,
        rule=f"it names device {device}, which {owner[device]} has, and a device serves one worker",
        consequence="two workers would share its memory",
        fix=[f"resources.{role}.devices={as_value(left)}"] if left and len(left) % workers == 0 else [f"resources.{role}.devices=cpu"],
        advice="or take it from the other",
    )


def _outside(role: str, devices: tuple[int, ...], device: int, cluster: ClusterSettings) -> SettingError:
    return SettingError(
        f"resources.{role}.devices",
        devices,
        rule=f"it names device {device}, which is none of cluster.devices = {cluster.devices}, whose indexes begin at 0",
        consequence="the role cannot be placed",
        fix=accelerators(max(devices) + 1, cluster) if device >= 0 else [f"resources.{role}.devices={len(devices)}"],
        advice="or other indexes",
    )


def _devices_of(role: str, settings: ResourceSettings, free: list[int], cluster: ClusterSettings) -> list[int]:
    if settings.devices == "cpu":
        return []
    key, workers = f"resources.{role}.devices", settings.workers
    count = settings.devices if isinstance(settings.devices, int) else len(settings.devices)
    if count < 1 or count % workers:
        fits = max(count // workers, 1) * workers
        fix = [f"{key}={fits}"] if isinstance(settings.devices, int) and count > 0 and fits <= len(free) else [f"{key}=cpu"]
        rule = f"{count} devices do not divide among {workers} workers: every worker gets the same number, at least 1"
        advice = f'or change resources.{role}.workers ("cpu": no device)'
        raise SettingError(key, settings.devices, rule=rule, consequence="the role cannot be placed", fix=fix, advice=advice)
    if isinstance(settings.devices, tuple):
        return list(settings.devices)
    if count > len(free):
        rule = f"only {len(free)} devices are left of cluster.devices = {cluster.devices}"
        fix = accelerators(cluster.devices + count - len(free), cluster)
        raise SettingError(key, count, rule=rule, consequence="the role cannot be placed", fix=fix, advice="or give roles fewer")
    return [free.pop(0) for _ in range(count)]


def accelerators(count: int, cluster: ClusterSettings) -> list[str]:
    """Overrides that make a cluster of `count` accelerators out of this one."""
    return [f"cluster.devices={count}", *(["cluster.kind=cuda"] if cluster.kind == "cpu" else [])]
