"""Which places a run needs, and what to say when the nodes of the cluster do not have them. Nothing here knows Ray: numbers in, words out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from asyncflow.config import Place, RunConfig
from asyncflow.launch.ray.agent import RESOURCES
from transfer_queue.security import is_loopback

CPU = "CPU"
NODE = "node:"  # prefix of the resource that only one node has
EXACT = 1e-4  # Ray counts in steps of this


class Bundle(msgspec.Struct, frozen=True):
    """What has to be on one node: a worker, and those that run beside it."""

    names: tuple[str, ...]  # the first has the devices
    wants: dict[str, float]  # resource → how much, zeros left out

    @property
    def label(self) -> str:
        return " with ".join(self.names)


class Node(msgspec.Struct, frozen=True):
    """One node that is alive."""

    name: str
    host: str  # its address
    total: dict[str, float]
    free: dict[str, float]  # now


def bundles(config: RunConfig) -> list[Bundle]:
    """One for each worker that runs beside nobody, in the order of the roles. A thread is a CPU."""
    places = config.places()
    found = []
    for head in (place for place in places if place.beside is None):
        members = [head, *(place for place in places if place.beside == head.name)]
        pinned = _publishers_host(config) if any(place.role == "publisher" for place in members) else {}
        found.append(Bundle(tuple(place.name for place in members), _sum([pinned, *(wants(place, config.cluster.kind) for place in members)])))
    return found


def _publishers_host(config: RunConfig) -> dict[str, float]:
    """An address beyond loopback belongs to one node, and the publisher is to listen there."""
    bind = config.weights.bind
    return {} if is_loopback(bind) else {NODE + bind.partition("://")[2].rpartition(":")[0]: 0.001}


def unreachable(config: RunConfig, nodes: Sequence[Node]) -> str | None:
    """Why workers of other machines could reach nobody; None where they can, or all nodes are of one machine."""
    hosts = sorted({node.host for node in nodes})
    if len(hosts) < 2 or all(is_loopback(f"tcp://{host}:0") for host in hosts):
        return None
    binds = {"queue.bind": config.queue.bind, "queue.shard_bind": config.queue.shard_bind, "weights.bind": config.weights.bind}
    for key, url in binds.items():
        if is_loopback(url):
            return (
                f"{key} = {url!r}: the cluster's nodes are {', '.join(hosts)}, and loopback is reached from one of them only; workers elsewhere "
                f"would never join. Fix: {key}=tcp://ADDRESS:0 with an address of {'a node' if key == 'weights.bind' else 'this machine'}, and "
                "queue.key_file=DIR/server.key, made by `python -m transfer_queue keys DIR`"
            )
    return None


def wants(place: Place, kind: str) -> dict[str, float]:
    """What one worker takes of its node. Who runs beside another takes no device: it has the other's."""
    needs = {CPU: float(place.threads)}
    if place.devices and place.beside is None:
        needs[RESOURCES.get(kind, "GPU")] = len(place.devices) * place.share
    return needs


def never(needed: Sequence[Bundle], nodes: Sequence[Node]) -> str | None:
    """Why these can never be placed, even were all nodes idle; None where they may be."""
    for bundle in needed:
        if not any(_fits(bundle.wants, node.total) for node in nodes):
            wanted = amounts(bundle.wants)
            return f"{bundle.label} cannot be placed: it wants {wanted} on one node, and no node has so much; {have(nodes, needed)}. {FIX}"
    there = _sum([node.total for node in nodes])
    for resource, amount in _sum([bundle.wants for bundle in needed]).items():
        if amount > (total := there.get(resource, 0.0)) + EXACT:
            last = _first_beyond([bundle for bundle in needed if resource in bundle.wants], resource, total)
            return (
                f"{last.label} cannot be placed: it wants {amounts(last.wants)}, all workers together want {amount:g} {resource}, and all nodes "
                f"together have {total:g}; {have(nodes, needed)}. {FIX}"
            )
    return None


def not_now(needed: Sequence[Bundle], nodes: Sequence[Node], place_s: float) -> str:
    """Who found no place within the time, by putting the largest first on what is free now."""
    left = {node.name: dict(node.free) for node in nodes}
    without = []
    for bundle in sorted(needed, key=_size, reverse=True):
        home = next((free for free in left.values() if _fits(bundle.wants, free)), None)
        if home is None:
            without.append(bundle)
        else:
            for resource, amount in bundle.wants.items():
                home[resource] -= amount
    named = without or list(needed)
    what = ", ".join(f"{bundle.label} (wants {amounts(bundle.wants)})" for bundle in named)
    return f"no place within limits.place_s = {place_s:g} s for {what}; {have(nodes, needed)}. Others may use the cluster: wait for them. {FIX}"


FIX = "Fix: fewer resources.*.workers, devices or threads, or more nodes"


def have(nodes: Sequence[Node], needed: Sequence[Bundle] = ()) -> str:
    """What there is, of what is wanted."""
    resources = list(dict.fromkeys(resource for bundle in needed for resource in bundle.wants)) or [CPU]
    if not nodes:
        return "the cluster has no node"
    shown = [", ".join(f"{node.free.get(name, 0.0):g} of {node.total.get(name, 0.0):g} {name} free" for name in resources) for node in nodes]
    return "; ".join(f"node {node.name} has {text}" for node, text in zip(nodes, shown, strict=True))


def amounts(wanted: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {resource}" for resource, amount in wanted.items())


def _size(bundle: Bundle) -> tuple[float, float]:
    """Devices first, then CPUs."""
    return sum(amount for resource, amount in bundle.wants.items() if resource != CPU), bundle.wants.get(CPU, 0.0)


def _fits(wanted: dict[str, float], there: dict[str, float]) -> bool:
    return all(there.get(resource, 0.0) + EXACT >= amount for resource, amount in wanted.items())


def _sum(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0.0) + amount
    return total


def _first_beyond(takers: Sequence[Bundle], resource: str, there: float) -> Bundle:
    taken = 0.0
    for bundle in takers:
        taken += bundle.wants[resource]
        if taken > there + EXACT:
            return bundle
    return takers[-1]
