"""Settings of the resources: how many workers of each role, on which devices, with how many threads, serving which stages."""

from __future__ import annotations

from typing import Literal

import msgspec

from asyncflow.config.errors import SettingError, as_value
from asyncflow.config.settings import Settings

LOOP_ROLES = ("source", "rollout", "trainer", "publisher")  # roles with a loop of their own; every other role lists its stages
ROLE_OF_STAGE = {"rollout": "rollout", "train": "trainer"}  # the stages that such a role serves
RESERVED_ROLES = ("controller", "shard", "launcher")
ROUNDING = 1e-9  # three thirds are a device


class ResourceSettings(Settings, frozen=True):
    """One role's workers. Null removes a role of the defaults."""

    workers: int = 1  # Processes of this role.
    devices: int | float | Literal["cpu"] | tuple[int, ...] = "cpu"  # "cpu"; how many its workers share out; a part (0.5) for each; or indexes.
    beside: str | None = None  # Role whose workers this one's run beside, in turn: on the same machine, with the same devices.
    threads: int = 1  # OpenMP and torch threads of each worker; more threads than free cores are slower, not faster.
    stages: tuple[str, ...] = ()  # Stages that the role serves, for roles without a loop of their own.


class ClusterSettings(Settings, frozen=True):
    """The accelerators that `resources.*.devices` counts."""

    kind: Literal["cpu", "cuda", "npu"] = "cpu"  # What an accelerator is here; "cpu": there is none.
    devices: int = 0  # How many there are in all; roles given as counts get consecutive free ones.
    address: str | None = None  # Of the Ray cluster to join (launch=ray); null: that of RAY_ADDRESS, else one on this machine for this run alone.


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
    devices: tuple[int, ...]  # accelerator indexes, those of `beside` where that is given; () is the CPU
    threads: int
    share: float = 1.0  # of each of its devices
    beside: str | None = None  # worker whose machine and devices it has


def place(resources: dict[str, ResourceSettings], cluster: ClusterSettings) -> list[Place]:
    """Every worker of the run with its devices: explicit indexes as given, counts and parts from what is left, in the order of the roles; those that
    run beside others as they do.

    Raises SettingError naming the role when indexes overlap, lie outside the cluster, are too few, or do not divide among the workers.
    """
    free = _free_devices(resources, cluster)
    shared: dict[int, float] = {}  # device → what is left of it
    own: dict[str, list[Place]] = {}
    for role, settings in resources.items():
        if settings.beside is not None:
            continue
        if isinstance(settings.devices, float):
            own[role] = _parts(role, settings, settings.devices, free, shared, cluster)
            continue
        owned = _devices_of(role, settings, free, cluster)
        share = len(owned) // settings.workers
        chunks = [tuple(owned[index * share : (index + 1) * share]) for index in range(settings.workers)]
        own[role] = [Place(role, f"{role}-{index}", chunk, settings.threads) for index, chunk in enumerate(chunks)]
    return [spot for role, settings in resources.items() for spot in own.get(role) or _beside(role, settings, own)]


def _beside(role: str, settings: ResourceSettings, own: dict[str, list[Place]]) -> list[Place]:
    hosts = own.get(settings.beside or "", [])  # `check` refuses a role that is not there, or has no places of its own
    found = []
    for index in range(settings.workers if hosts else 0):
        host = hosts[index % len(hosts)]
        found.append(Place(role, f"{role}-{index}", host.devices, settings.threads, host.share, host.name))
    return found


def _parts(
    role: str, settings: ResourceSettings, part: float, free: list[int], shared: dict[int, float], cluster: ClusterSettings
) -> list[Place]:
    """A part of one device for each worker: of the first that has so much left, else of a fresh one."""
    key = f"resources.{role}.devices"
    if not 0 < part < 1:
        rule, advice = "with a point it is a part of one device for each worker, between 0 and 1", "or a whole number, which all workers share out"
        fix = [f"{key}={max(round(part), 1) * settings.workers}"] if cluster.devices else [f"{key}=cpu"]
        raise SettingError(key, part, rule=rule, consequence="the role cannot be placed", fix=fix, advice=advice)
    found = []
    for index in range(settings.workers):
        device = next((device for device, left in shared.items() if left >= part - ROUNDING), None)
        if device is None:
            if not free:
                rule = f"none of cluster.devices = {cluster.devices} has that much left for worker {index} of {settings.workers}"
                fix = accelerators(cluster.devices + 1, cluster)
                raise SettingError(key, part, rule=rule, consequence="the role cannot be placed", fix=fix, advice="or give roles less")
            device = free.pop(0)
            shared[device] = 1.0
        shared[device] -= part
        found.append(Place(role, f"{role}-{index}", (device,), settings.threads, part))
    return found


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
    if settings.devices == "cpu" or isinstance(settings.devices, float):
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
