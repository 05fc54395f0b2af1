"""Who computes what: the processes of the run, with stages, models, devices and threads."""

from __future__ import annotations

import msgspec

from asyncflow.config.resources import ROLE_OF_STAGE
from asyncflow.config.root import POLICY, RunConfig
from asyncflow.contracts.stage import Stage
from asyncflow.launch.plan import device_count, shard_specs, worker_specs


class Served(msgspec.Struct, frozen=True):
    """A stage, as its role serves it."""

    name: str
    model: str | None
    unit: str
    at_least: int  # fewest units in one lease
    limit: int  # most
    code: str


class Role(msgspec.Struct, frozen=True):
    """All workers of one name."""

    name: str
    workers: int
    threads: int  # of each
    devices: list[list[int]]  # accelerator indexes of each worker; empty: the CPU
    share: float  # of each of its devices that a worker has
    beside: str | None  # role whose machines and devices its workers have
    stages: list[Served]
    models: dict[str, str]  # model it computes with → "follows every published version" or "loaded once"
    death: str  # what becomes of the run when one is killed


class Processes(msgspec.Struct, frozen=True):
    launch: str  # where workers run
    kind: str  # what a device is
    devices: int  # in the cluster
    placed: int  # given to a role
    rate_divisor: int  # what tokens per second and device are divided by
    processes: int  # launcher, controller, shards and workers
    threads: int  # that compute, over all workers
    roles: list[Role]
    slots: int  # sequences decoded at once, over all replicas
    groups_in_slots: int  # whole groups in them


def processes(config: RunConfig) -> Processes:
    places = config.places()
    workers = worker_specs(config, controller="", key=None)
    shards = shard_specs(config, controller="", key=None)
    restartable = {spec.role: spec.restartable for spec in workers}
    replicas = sum(place.role == "rollout" for place in places)
    queue = [
        Role("controller", 1, 1, [[]], 1.0, None, [], {}, _death(config, config.queue.journal)),
        Role("shard", len(shards), 1, [[] for _ in shards], 1.0, None, [], {}, _death(config, all(shard.restartable for shard in shards))),
    ]
    return Processes(
        launch=config.launch,
        kind=config.cluster.kind,
        devices=config.cluster.devices,
        placed=len({device for place in places for device in place.devices}),
        rate_divisor=device_count(config),
        processes=len(workers) + len(shards) + 2,
        threads=sum(place.threads for place in places),
        roles=[_role(config, role, restartable[role]) for role in config.resources] + queue,
        slots=replicas * config.rollout.slots,
        groups_in_slots=replicas * (config.rollout.slots // config.rollout.samples_per_prompt),
    )


def _role(config: RunConfig, role: str, restartable: bool) -> Role:
    places = [place for place in config.places() if place.role == role]
    stages = stages_of(config, role)
    return Role(
        name=role,
        workers=len(places),
        threads=places[0].threads,
        devices=[list(place.devices) for place in places],
        share=places[0].share,
        beside=config.resources[role].beside,
        stages=[Served(stage.name, stage.model, stage.unit, stage.at_least, stage.limit, stage.compute or "a loop of its own") for stage in stages],
        models=_models(config, role, stages),
        death=_death(config, restartable),
    )


def _death(config: RunConfig, restartable: bool) -> str:
    limits = config.limits
    return f"restarted, ≤ {limits.restarts} times in {limits.restart_window_s:g} s" if restartable else "ends the run"


def stages_of(config: RunConfig, role: str) -> list[Stage]:
    """What a role serves, be it by a loop of its own."""
    own = [config.stage(stage) for stage, served in ROLE_OF_STAGE.items() if served == role and stage in config.stages]
    return own or config.stages_of(role)


def _models(config: RunConfig, role: str, stages: list[Stage]) -> dict[str, str]:
    if role == "publisher":
        return {POLICY: "holds and publishes each version"}
    if role == "trainer":
        return {POLICY: "trains it"}
    names = dict.fromkeys(stage.model for stage in stages if stage.model is not None)
    return {name: "loaded once (frozen)" if config.models[name].frozen else "follows every published version" for name in names}


def followers(config: RunConfig) -> list[str]:
    """Workers that receive each published version, and so have a cache of their own."""
    roles = {role for role in config.resources for stage in stages_of(config, role) if role != "trainer" and _follows(config, stage)}
    return [place.name for place in config.places() if place.role in roles]


def pulling(config: RunConfig) -> list[str]:
    """Those of them that no broadcast reaches: all, or those without a device where its backend moves the memory of devices only."""
    if config.weights.transport == "pull":
        return followers(config)
    if config.weights.backend not in ("nccl", "hccl"):
        return []
    on_cpu = {place.name for place in config.places() if not place.devices}
    return [name for name in followers(config) if name in on_cpu]


def _follows(config: RunConfig, stage: Stage) -> bool:
    return stage.model is not None and not config.models[stage.model].frozen
