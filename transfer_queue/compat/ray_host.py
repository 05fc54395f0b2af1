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
    """What the actor is. One method runs at a time. What goes wrong goes wrong in a call: an actor whose constructor failed would keep the name."""

    def __init__(self) -> None:
        self._queue: QueueProcesses | None = None

    def address(self, settings: Settings | None) -> Address | None:
        """With `settings` the queue is started where there is none yet."""
        import ray

        if self._queue is None and settings is not None:
            self._queue = QueueProcesses(settings, ray.util.get_node_ip_address())
        return None if self._queue is None else self._queue.address

    def end(self) -> None:
        if self._queue is not None:
            self._queue.close()


def find() -> Found | None:
    """None: the cluster has no queue. One that is being started is waited for."""
    import ray

    try:
        return _found(ray.get_actor(NAME, namespace=NAMESPACE), None)
    except (ValueError, ray.exceptions.RayActorError):  # there is none; or it is ending
        return None


def start(settings: Settings) -> Found:
    """Whoever comes first starts it, the others find that one. Raises QueueTimeout, RuntimeError."""
    import ray

    deadline = time.monotonic() + PLACE_S + START_S
    options = {"name": NAME, "namespace": NAMESPACE, "get_if_exists": True, "num_cpus": 0, "max_restarts": 0}
    while True:
        try:
            found = _found(ray.remote(QueueHost).options(**options).remote(), settings)
            assert found is not None, "with settings it is started"
            return found
        except ray.exceptions.RayActorError as error:  # the one that was found was ending
            if time.monotonic() >= deadline:
                raise RuntimeError(f"the queue of this Ray cluster could not be started: {error}") from error
            time.sleep(AGAIN_S)  # Ray tells nobody when a name is free


def _found(actor: Any, settings: Settings | None) -> Found | None:
    import ray

    try:
        address: Address | None = ray.get(actor.address.remote(settings), timeout=PLACE_S + START_S)
    except ray.exceptions.GetTimeoutError as error:
        waited = f"{PLACE_S + START_S:g} s"
        raise QueueTimeout(f"actor {NAME!r} of namespace {NAMESPACE!r}, which holds this cluster's queue, was not up within {waited}") from error
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(f"the queue of this Ray cluster could not be started: {error.cause}; the log of actor {NAME!r} says more") from error
    return None if address is None else Found(address, lambda: _end(actor))


def _end(actor: Any) -> None:
    """Its processes first: killed with it, they would only notice a moment later."""
    import ray

    with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):  # it is gone, or hangs
        ray.get(actor.end.remote(), timeout=ASK_S)
    ray.kill(actor)
