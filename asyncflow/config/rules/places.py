"""Rules on where workers run: beside whom, in which cluster, and with what that needs installed."""

from __future__ import annotations

from importlib.util import find_spec

from asyncflow.config.errors import SettingError, as_value, closest, did_you_mean
from asyncflow.config.root import RunConfig

RAY = "ray"


def beside(config: RunConfig) -> None:
    """A role runs beside one that is there and has places of its own."""
    for role, settings in config.resources.items():
        if (other := settings.beside) is None:
            continue
        key = f"resources.{role}.beside"
        hosts = [name for name, found in config.resources.items() if name != role and found.beside is None]
        if other not in hosts:
            near = closest(other, hosts)
            if other == role:
                rule = "it is that role itself"
            elif other in config.resources:
                rule = f"that role runs beside {config.resources[other].beside!r} itself, and has no places of its own"
                near = config.resources[other].beside if config.resources[other].beside in hosts else None
            else:
                rule = f"there is no such role, {did_you_mean(other, hosts)}"
            raise SettingError(key, other, rule=rule, consequence="its workers would have no place", fix=[f"{key}={near or 'null'}"])
        if settings.devices != "cpu":
            rule = f"its workers have the devices of {other!r}, and resources.{role}.devices = {as_value(settings.devices)} names others"
            fix = [f"resources.{role}.devices=cpu"]
            raise SettingError(key, other, rule=rule, consequence="one of the two would be ignored", fix=fix, advice=f"or {key}=null")


def cluster(config: RunConfig) -> None:
    """What only a Ray cluster has is not given without one, and the other way round."""
    if config.launch != RAY:
        if config.cluster.address is not None:
            rule, consequence = "it is the address of a Ray cluster, and launch = 'local' starts everything here", "it would be ignored"
            raise SettingError("cluster.address", config.cluster.address, rule=rule, consequence=consequence, fix=["launch=ray"])
        return
    for role, settings in config.resources.items():
        if isinstance(settings.devices, tuple):
            raise SettingError(
                f"resources.{role}.devices",
                settings.devices,
                rule="with launch = 'ray' the cluster chooses which devices of which node, so they are given by number, not by index",
                consequence="an index would mean another device on every node",
                fix=[f"resources.{role}.devices={len(settings.devices)}"],
                advice=f"to share a set of devices: resources.{role}.beside=ROLE",
            )


def package(config: RunConfig) -> None:
    if config.launch == RAY and find_spec("ray") is None:
        rule, consequence = "it needs the package 'ray', which is not installed here", "no worker could be started"
        raise SettingError("launch", RAY, rule=rule, consequence=consequence, fix=["launch=local"], advice="or pip install 'asyncflow[ray]'")
