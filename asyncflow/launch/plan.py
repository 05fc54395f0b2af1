"""Which processes a run has on this machine, read off its configuration."""

from __future__ import annotations

from pathlib import Path

from asyncflow.config import RunConfig
from asyncflow.contracts.worker import WorkerArgs
from asyncflow.launch.child import ChildSpec, device_environment

MODEL_ROLES = ("rollout", "trainer")  # their loops compute with the policy, whatever stages say
PREPARE = "prepare"  # process that makes the models before a run, once per cache
UNREPLACEABLE = ("trainer", "publisher")  # they hold state that nobody else has; recovery is not there yet


def shard_specs(config: RunConfig, controller: str, key: str | None) -> list[ChildSpec]:
    """The processes that hold tensor bytes."""
    names = [f"shard-{index}" for index in range(config.queue.shards)]
    settings = config.queue
    return [
        ChildSpec(
            name=name,
            role="shard",
            entry="asyncflow.launch.shard:run",
            args=(name, controller, key, settings.shard_bind, settings.shard_bytes, settings.keep_bytes),
            log=log_of(config, name),
            restartable=True,
            log_level=config.run.log_level,
        )
        for name in names
    ]


def worker_specs(config: RunConfig, controller: str, key: str | None) -> list[ChildSpec]:
    """All workers, in the order of the roles in the configuration."""
    return [
        _worker(
            config,
            WorkerArgs(role=place.role, name=place.name, controller=controller, key=key, threads=place.threads),
            restartable=place.role not in UNREPLACEABLE,
            environment=device_environment(config.cluster.kind, place.devices),
        )
        for place in config.places()
    ]


def _worker(config: RunConfig, args: WorkerArgs, restartable: bool = False, environment: dict[str, str] | None = None) -> ChildSpec:
    return ChildSpec(
        name=args.name,
        role=args.role,
        entry="asyncflow.worker:main",
        args=(args,),
        log=log_of(config, args.name),
        restartable=restartable,
        environment=environment or {},
        log_level=config.run.log_level,
    )


def log_of(config: RunConfig, name: str) -> str:
    """The file that a process writes its output to."""
    return str(config.run_dir / "logs" / f"{name}.log")


def client_key(config: RunConfig) -> str | None:
    """The key file that workers get: `queue.client_key_file`, else `client.key` beside the controller's."""
    if config.queue.key_file is None:
        return None
    return config.queue.client_key_file or str(Path(config.queue.key_file).with_name("client.key"))


def device_count(config: RunConfig) -> int:
    """What tokens per second are divided by: every accelerator of every role; on a machine without, every worker that computes with a model."""
    places = config.places()
    accelerators = {device for place in places for device in place.devices}  # shared ones once
    return len(accelerators) or sum(
        place.role in MODEL_ROLES or any(stage.model is not None for stage in config.stages_of(place.role)) for place in places
    )
