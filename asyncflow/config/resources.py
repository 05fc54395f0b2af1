"""Settings of the resources: how many workers of each role, on which devices, with how many threads, serving which stages."""

from __future__ import annotations

from typing import Literal

import msgspec

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

    Raises ValueError naming the role when indexes overlap, lie outside the cluster, are too few, or do not divide among the workers.
    """
    free = _free_devices(resources, cluster)
    places: list[Place] = []
    for role, settings in resources.items():
        owned = _devices_of(role, settings, free)
        share = len(owned) // settings.workers
        for index in range(settings.workers):
            devices = tuple(owned[index * share : (index + 1) * share])
            places.append(Place(role, f"{role}-{index}", devices, settings.threads))
    return places


def _free_devices(resources: dict[str, ResourceSettings], cluster: ClusterSettings) -> list[int]:
    """Indexes that no role names."""
    owner: dict[int, str] = {}
    for role, settings in resources.items():
        for device in settings.devices if isinstance(settings.devices, tuple) else ():
            if device in owner:
                raise ValueError(f"resources.{role}.devices names device {device}, which {owner[device]} has: a device serves one role; take another")
            if not 0 <= device < cluster.devices:
                raise ValueError(f"resources.{role}.devices names device {device}; cluster.devices = {cluster.devices}, so indexes are below it")
            owner[device] = role
    return [device for device in range(cluster.devices) if device not in owner]


def _devices_of(role: str, settings: ResourceSettings, free: list[int]) -> list[int]:
    if settings.devices == "cpu":
        return []
    if isinstance(settings.devices, tuple):
        owned = list(settings.devices)
    else:
        if settings.devices > len(free):
            raise ValueError(
                f"resources.{role}.devices = {settings.devices}, but only {len(free)} devices are left of cluster.devices: "
                f"the role cannot be placed; give other roles fewer or raise cluster.devices"
            )
        owned = [free.pop(0) for _ in range(settings.devices)]
    if not owned or len(owned) % settings.workers:
        raise ValueError(
            f"resources.{role}: {len(owned)} devices do not divide among {settings.workers} workers: every worker gets the same number, at least 1; "
            f'change workers or devices ("cpu" for none)'
        )
    return owned
