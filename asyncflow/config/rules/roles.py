"""Rules on roles: every stage is served by one, every one has workers, devices and something to do; and on where they listen."""

from __future__ import annotations

from asyncflow.config.errors import SettingError, as_value, closest, did_you_mean, spelt
from asyncflow.config.resources import LOOP_ROLES, RESERVED_ROLES, ROLE_OF_STAGE, ResourceSettings, default_resources
from asyncflow.config.root import RunConfig
from asyncflow.config.rules.bounds import at_least
from transfer_queue.security import is_loopback


def roles(config: RunConfig) -> None:
    """Every stage has exactly one role that serves it, and every role has workers and something to do."""
    served: dict[str, str] = {stage: role for stage, role in ROLE_OF_STAGE.items() if role in config.resources}
    for role, settings in config.resources.items():
        _role(config, role)
        for stage in settings.stages:
            _stage_of(config, role, stage, served)
            served[stage] = role
    for role in LOOP_ROLES:
        if role not in config.resources:
            rule, consequence = "it is missing, and no run works without that role", "the others would wait for it until the run ends as stalled"
            raise SettingError(f"resources.{role}", None, rule=rule, consequence=consequence, fix=[f"++resources.{role}.workers=1"])
    for stage in config.stages:
        if stage not in served:
            raise _unserved(config, stage)


def _stage_of(config: RunConfig, role: str, stage: str, served: dict[str, str]) -> None:
    """A stage that a role lists is there, and nobody else's."""
    key, stages = f"resources.{role}.stages", config.resources[role].stages
    if stage in config.stages and stage not in served:
        return
    if stage in served:
        once = list(dict.fromkeys(stages)) if served[stage] == role else [other for other in stages if other != stage]
        fix = [f"{key}={as_value(once)}"] if once else [f"resources.{role}=null"]
        rule = f"{stage!r} is served by {served[stage]!r} already, and a stage has one role"
        raise SettingError(key, stages, rule=rule, consequence="its rows would be leased by two loops that do not know of one another", fix=fix)
    near = closest(stage, (known for known in config.stages if known not in served and known not in stages))
    left = [near if other == stage else other for other in stages if other != stage or near is not None]
    rule = f"there is no stage {stage!r}, {did_you_mean(stage, config.stages)}"
    fix = [f"{key}={as_value(left)}"] if left else [f"resources.{role}=null"]
    raise SettingError(key, stages, rule=rule, consequence="its workers would have nothing to do", fix=fix, advice=f"or add stages.{stage}")


def _unserved(config: RunConfig, stage: str) -> SettingError:
    """Fix: the role that serves it by default, where that is there; else a role of its own."""
    home, default = next(((role, given) for role, given in default_resources().items() if stage in given.stages), (stage, ResourceSettings()))
    if home in config.resources:
        fix = f"resources.{home}.stages={as_value([*config.resources[home].stages, stage])}"
    else:
        fix = f"++resources.{home}.stages={as_value([known for known in default.stages if known in config.stages] or [stage])}"
    return SettingError(
        f"stages.{stage}",
        rule="no role serves it: none of resources.*.stages names it",
        consequence="its rows would wait for ever",
        fix=[fix],
        advice=f"or leave the stage out: stages.{stage}=null",
    )


def _role(config: RunConfig, role: str) -> None:
    settings, key = config.resources[role], f"resources.{role}"
    if role in RESERVED_ROLES:
        rule = "the name is taken by a process of the queue or the launcher (shards: queue.shards)"
        consequence = "its workers would be taken for that process"
        raise SettingError(key, rule=rule, consequence=consequence, fix=[f"{key}=null"], advice="or give it another name")
    at_least(f"{key}.workers", settings.workers, 1, f"nobody would do the role's work (to leave the role out: {key}=null)")
    at_least(f"{key}.threads", settings.threads, 1, "a worker computes with one thread at least")
    if role in LOOP_ROLES and settings.stages:
        rule = f"that role has a loop of its own and serves {', '.join(s for s, r in ROLE_OF_STAGE.items() if r == role) or 'no stage'}"
        consequence, advice = "they would never be served", "and give the stages to another role"
        raise SettingError(f"{key}.stages", settings.stages, rule=rule, consequence=consequence, fix=[f"{key}.stages=[]"], advice=advice)
    if role not in LOOP_ROLES and not settings.stages:
        rule, consequence = "it must name the stages that the role serves", "its workers would have nothing to do"
        default = default_resources().get(role)
        fix = [f"{key}=null"] if default is None else [f"{key}.stages={as_value(default.stages)}"]
        raise SettingError(f"{key}.stages", settings.stages, rule=rule, consequence=consequence, fix=fix)


def devices(config: RunConfig) -> None:
    kind, count = config.cluster.kind, config.cluster.devices
    if kind == "cpu" and count > 0:
        rule, consequence = "cluster.kind = 'cpu' says that there is no accelerator", "they would be given out to workers that cannot use them"
        advice = "or name their kind: cluster.kind=cuda or npu"
        raise SettingError("cluster.devices", count, rule=rule, consequence=consequence, fix=["cluster.devices=0"], advice=advice)
    config.places()


def backend(config: RunConfig) -> None:
    """A backend that moves device memory needs a device in every member of the group, the publisher included."""
    name, kind = config.weights.backend, config.cluster.kind
    needs = {"nccl": "cuda", "hccl": "npu"}.get(name)
    if needs is None or config.weights.transport == "pull":
        return
    consequence = "no broadcast group could be made"
    if kind != needs:
        rule, advice = f"it moves memory of {needs} devices, and cluster.kind = {kind!r}", f"or set cluster.kind={needs}"
        raise SettingError("weights.backend", name, rule=rule, consequence=consequence, fix=["weights.backend=auto"], advice=advice)
    if not any(place.devices for place in config.places() if place.role == "publisher"):
        rule, advice = f"the publisher sends, and resources.publisher.devices = 'cpu' gives it no {kind} device", "or resources.publisher.devices=1"
        raise SettingError("weights.backend", name, rule=rule, consequence=consequence, fix=["weights.backend=auto"], advice=advice)


def wires(config: RunConfig) -> None:
    """Addresses are addresses, and beyond loopback keys are required."""
    binds = {"queue.bind": config.queue.bind, "queue.shard_bind": config.queue.shard_bind, "weights.bind": config.weights.bind}
    for key, url in binds.items():
        scheme, _, rest = url.partition("://")
        host, _, port = rest.rpartition(":")
        if scheme != "ipc" and not (scheme == "tcp" and host and (port == "*" or (port.isdecimal() and int(port) < 1 << 16))):
            rule = "it must be tcp://ADDRESS:PORT with a port from 0 (any free one) to 65535"
            raise SettingError(key, url, rule=rule, consequence="nobody could listen there", fix=[f"{key}=tcp://127.0.0.1:0"])
        if not is_loopback(url) and config.queue.key_file is None:
            raise SettingError(
                key,
                url,
                rule=f"beyond loopback queue.key_file (= {spelt(None)}) must name keys",
                consequence="whoever reaches the port could take part in the run",
                fix=["queue.key_file=DIR/server.key"],
                advice=f"made by `python -m transfer_queue keys DIR`, or stay on this machine: {key}=tcp://127.0.0.1:0",
            )
