"""The Ray cluster that a run uses: one that is there, or one of this machine for this run alone. All that the launcher asks of it, but for actors.

A cluster of our own is as small as Ray can be made: no dashboard, a little object store (nothing of a run travels through it), no memory monitor (it
would kill workers), a short temporary directory (paths of its sockets have at most 107 characters), no statistics sent anywhere.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from asyncflow.launch.ray import guard
from asyncflow.launch.ray.placement import CPU, Bundle, Node

LOOPBACK = "127.0.0.1"  # of a cluster of our own: nobody else is to reach it
STORE_BYTES = 80 << 20  # the least that Ray takes is 75 MB
QUIET = {
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",  # else 15: the workers of a busy machine would starve, and their heartbeats come late
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",  # a container's /dev/shm may have 64 MB
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
GUARD_S = 30.0  # three times what it takes at most
REACH_S = 5.0  # between two machines of a cluster
ADDRESS = "RAY_ADDRESS"


class NoCluster(Exception):
    """It cannot be joined, or started."""


class Cluster:
    """Joined from `join` to `leave`. A process that has joined one already stays in it."""

    def __init__(self) -> None:
        self._group: Any = None
        self._joined = False
        self._guard: subprocess.Popen[bytes] | None = None

    def join(self, address: str | None, needed: Sequence[Bundle]) -> None:
        """`address`: of a cluster that is there; None: RAY_ADDRESS, else a cluster of our own, in which CPUs are counted so that `needed` has room,
        as for processes without Ray. Raises NoCluster."""
        with _own_handlers():
            import ray

            if ray.is_initialized():
                return
            address = address or os.environ.get(ADDRESS)
            options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
            if address is None or address == "local":
                options |= self._own(needed)
            try:
                _reach(options["address"])
                with _environment(QUIET):
                    ray.init(**options)
            except (OSError, ValueError, RuntimeError) as error:  # Ray's own errors are such
                own = self._guard is not None
                self._end_own()
                why = " ".join(str(error).split())[:300]
                if own:
                    raise NoCluster(f"no Ray cluster could be started on this machine ({why}). Fix: `ray start --head` says more") from error
                where = f"cluster.address = {address!r}: no Ray cluster answers there"
                raise NoCluster(f"{where} ({why}). Fix: `ray start --head` there, or cluster.address=null") from error
            self._joined = True

    def _own(self, needed: Sequence[Bundle]) -> dict[str, Any]:
        folder = tempfile.mkdtemp(prefix="af-", dir="/tmp" if os.path.isdir("/tmp") else None)
        command = [sys.executable, guard.__file__, folder]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        cpus = sum(bundle.wants.get(CPU, 0.0) for bundle in needed)
        return {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, int(cpus + 0.999)),
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "_node_ip_address": LOOPBACK,
            "_temp_dir": folder,
        }

    def nodes(self) -> list[Node]:
        """Those that are alive, with what is free there now."""
        import ray
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        found = []
        for entry in ray.nodes():
            if entry["Alive"]:
                name, host = entry["NodeID"], entry["NodeManagerAddress"]
                found.append(Node(f"{host} ({name[:8]})", host, dict(entry["Resources"]), dict(free.get(name, {}))))
        return found

    def reserve(self, needed: Sequence[Bundle]) -> None:
        """Ask for all of these at once: all or none. The answer is `reserved`."""
        from ray.util import placement_group

        self._group = placement_group([dict(bundle.wants) for bundle in needed], strategy="PACK")

    def reserved(self, timeout_s: float) -> bool:
        """Whether they are there, after at most so long a wait."""
        return bool(self._group.wait(timeout_s))

    def at(self, bundle: int) -> Any:
        """Scheduling strategy that puts an actor into this one of the bundles."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=bundle)

    def leave(self) -> None:
        """Everything of ours in the cluster ends; one of our own ends whole."""
        if self._group is not None:
            from ray.util import remove_placement_group

            remove_placement_group(self._group)
            self._group = None
        if self._joined:
            import ray

            with _own_handlers():
                ray.shutdown()
            self._joined = False
        self._end_own()

    def _end_own(self) -> None:
        """What Ray's own shutdown left of our cluster, and its folder."""
        if self._guard is not None:
            try:
                self._guard.communicate(timeout=GUARD_S)
            except subprocess.TimeoutExpired:  # it is in its last loop, or stopped: the run's own end is not to hang or to fail on it
                self._guard.kill()
            self._guard = None


def _reach(address: str) -> None:
    """Raises OSError where nobody listens at HOST:PORT: Ray itself would try for most of a minute."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Ray takes signals for itself when it is imported, and again when it starts; a run handles its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    """What a cluster of our own starts with; whoever set one of them meant it."""
    mine = {name: value for name, value in added.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
