"""Who starts the workers of a run in its places: an agent for each, kept for the worker's next life, and made anew where the old one is gone."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from asyncflow.config import RunConfig
from asyncflow.contracts.worker import WorkerArgs
from asyncflow.launch.child import ChildSpec
from asyncflow.launch.ray.agent import RESOURCES, Agent, Order
from asyncflow.launch.ray.cluster import Cluster
from asyncflow.launch.ray.placement import CPU, Bundle, wants
from asyncflow.launch.ray.remote import RemoteChild

CALLS = 8  # methods of an agent at once: one waits for the child, another signals it


class Agents:
    """By the name of the worker."""

    def __init__(self, config: RunConfig, cluster: Cluster, needed: list[Bundle]) -> None:
        """`needed` are the bundles as they were reserved."""
        self._config, self._cluster = config, cluster
        self._places = {place.name: place for place in config.places()}
        self._bundles = {name: index for index, bundle in enumerate(needed) for name in bundle.names}
        self._agents: dict[str, Any] = {}

    def begin(self, spec: ChildSpec) -> RemoteChild:
        """Start this worker in its place."""
        (args,) = spec.args
        place, kind = self._places[spec.name], self._config.cluster.kind
        agent = self._agent(spec.name)
        devices = self._agent(place.beside or spec.name).devices.remote(kind)

        def on_lost(kill: bool) -> None:
            self._forget(spec.name, agent, kill)

        return RemoteChild(spec, agent, self._order(spec, args), devices, self._config.limits.place_s, on_lost)

    def _agent(self, name: str) -> Any:
        if name not in self._agents:
            self._agents[name] = self._new(name)
        return self._agents[name]

    def _new(self, name: str) -> Any:
        import ray

        needs = wants(self._places[name], self._config.cluster.kind)
        options: dict[str, Any] = {"num_cpus": needs.pop(CPU), "num_gpus": needs.pop(RESOURCES["cuda"], 0), "resources": needs or None}
        strategy = self._cluster.at(self._bundles[name])
        return ray.remote(Agent).options(max_concurrency=CALLS, max_restarts=0, scheduling_strategy=strategy, **options).remote()

    def _forget(self, name: str, agent: Any, kill: bool) -> None:
        """In a thread of Ray's, where nothing may be asked of it, or (`kill`) of the timer. The worker's next life gets another agent."""
        if self._agents.get(name) is agent:
            del self._agents[name]
        if kill:
            import ray

            ray.kill(agent)

    def _order(self, spec: ChildSpec, args: WorkerArgs) -> Order:
        return Order(
            args=args,
            key=Path(args.key).read_bytes() if args.key is not None else None,
            log=spec.log,
            log_level=spec.log_level,
            search=tuple(search_path()),
            directory=os.getcwd(),
            kind=self._config.cluster.kind,
        )


def search_path() -> list[str]:
    """Where the launcher finds modules, beyond what its interpreter was installed with: other nodes have that themselves."""
    own = set(sysconfig.get_paths().values())
    paths = (os.path.abspath(entry) for entry in sys.path)  # "" is the current directory
    return [path for path in dict.fromkeys(paths) if path not in own and not path.endswith(".zip") and not path.endswith("lib-dynload")]
