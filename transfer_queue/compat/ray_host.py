"""The queue of a Ray cluster: an actor with a name holds it. Its processes are the actor's children and die with it; the actor dies with the process
that made it, and by `close`. It asks for no CPU, so that it has its place on any cluster."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from transfer_queue.compat.address import Address, Found
from transfer_queue.compat.conf import Settings
from transfer_queue.compat.processes import START_S, QueueProcesses
from transfer_queue.errors import QueueTimeout

NAME, NAMESPACE = "AsyncFlowTransferQueue", "transfer_queue"
PLACE_S = 60.0  # for Ray to begin a process, beside what the queue's own need
ASK_S = 10.0  # of an actor that is up
AGAIN_S = 0.1  # between two looks whether a name is free


class QueueHost:
    """What the actor is."""

    def __init__(self, settings: Settings) -> None:
        import ray

        self._queue = QueueProcesses(settings, ray.util.get_node_ip_address())

    def address(self) -> Address:
        return self._queue.address

    def end(self) -> None:
        self._queue.close()


def find() -> Found | None:
    """None: the cluster has no queue. One that is being started is waited for."""
    import ray

    try:
        actor = ray.get_actor(NAME, namespace=NAMESPACE)
        return _found(actor)
    except (ValueError, ray.exceptions.RayActorError):  # there is none; or it is ending
        return None


def start(settings: Settings) -> Found:
    """Whoever comes first starts it, the others find that one. Raises QueueTimeout, RuntimeError."""
    import ray

    deadline = time.monotonic() + PLACE_S + START_S
    host = ray.remote(QueueHost)
    while True:
        options = {"name": NAME, "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0, "max_restarts": 0}
        try:
            return _found(host.options(**options).remote(settings))
        except ray.exceptions.ActorDiedError as error:
            _await_end()
            if "__init__" in str(error) or time.monotonic() >= deadline:  # else the one that was found was ending
                raise RuntimeError(f"the queue of this Ray cluster could not be started: {error}") from error


def _await_end() -> None:
    """Until the name of an actor that has ended is free, or ASK_S are over: whoever asks for it before gets that one again."""
    import ray

    deadline = time.monotonic() + ASK_S
    with contextlib.suppress(ValueError):  # nobody has it
        while time.monotonic() < deadline:
            ray.get_actor(NAME, namespace=NAMESPACE)
            time.sleep(AGAIN_S)  # Ray tells nobody when a name is free


def _found(actor: Any) -> Found:
    import ray

    try:
        address: Address = ray.get(actor.address.remote(), timeout=PLACE_S + START_S)
    except ray.exceptions.GetTimeoutError as error:
        waited = f"{PLACE_S + START_S:g} s"
        raise QueueTimeout(f"actor {NAME!r} of namespace {NAMESPACE!r}, which holds this cluster's queue, was not up within {waited}") from error
    return Found(address, lambda: _end(actor))


def _end(actor: Any) -> None:
    """Its processes first: killed with it, they would only notice a moment later."""
    import ray

    with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):  # it is gone, or hangs
        ray.get(actor.end.remote(), timeout=ASK_S)
    ray.kill(actor)
