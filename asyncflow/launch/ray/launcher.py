"""`RayLauncher`: workers run on the nodes of a Ray cluster; the controller, the shards and this process on the machine where the run was started.

Workers find everybody by the controller's address alone, as ever: Ray places them, gives them their devices and tells of their ends, and carries
nothing else but the client's key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from asyncflow.config import RunConfig
from asyncflow.launch.child import Child, ChildSpec
from asyncflow.launch.forkserver import context
from asyncflow.launch.launcher import Launcher, RunFailed, Say, Workers, is_worker
from asyncflow.launch.link import WATCH_S
from asyncflow.launch.nursery import Process
from asyncflow.launch.plan import PREPARE, worker_specs
from asyncflow.launch.ray.cluster import Cluster, NoCluster
from asyncflow.launch.ray.nursery import Agents
from asyncflow.launch.ray.placement import bundles, never, not_now, unreachable
from asyncflow.observe.records import INTERRUPTED
from transfer_queue.operation.signals import Signals


class RayLauncher(Launcher):
    """See `Launcher`. `config.launch` is "ray"."""

    def __init__(self, config: RunConfig, say: Say, tick: Callable[[], None] = lambda: None, workers: Workers = worker_specs) -> None:
        super().__init__(config, say, self._begin, tick, workers)
        self._here = partial(Child, context(config))
        self._cluster = Cluster()
        self._agents: Agents | None = None

    def _place(self, signals: Signals) -> None:
        """Raises RunFailed for what no node could ever hold at once, and for the rest after `limits.place_s`."""
        needed = bundles(self.config)
        try:
            self._cluster.join(self.config.cluster.address, needed)
        except NoCluster as error:
            raise RunFailed(str(error)) from None
        nodes = self._cluster.nodes()
        refusal = never(needed, nodes) or unreachable(self.config, nodes)
        if refusal is not None:
            raise RunFailed(refusal)
        self._reserve(signals)
        self.say(f"placed {sum(len(bundle.names) for bundle in needed)} workers on {len(nodes)} node{'s' if len(nodes) > 1 else ''} of a Ray cluster")
        self._agents = Agents(self.config, self._cluster, needed)

    def _reserve(self, signals: Signals) -> None:
        needed, place_s = bundles(self.config), self.config.limits.place_s
        deadline = time.monotonic() + place_s
        self._cluster.reserve(needed)
        while not self._cluster.reserved(min(WATCH_S, max(deadline - time.monotonic(), 0.0))):
            if signals.take():
                raise RunFailed(INTERRUPTED)
            if time.monotonic() >= deadline:
                raise RunFailed(not_now(needed, self._cluster.nodes(), place_s))
            self._tick()

    def _begin(self, spec: ChildSpec) -> Process:
        if self._agents is None or not is_worker(spec) or spec.name == PREPARE:
            return self._here(spec)
        return self._agents.begin(spec)

    def _vacate(self) -> None:
        self._cluster.leave()
