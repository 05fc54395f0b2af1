"""`init`, `close` and what a process knows of its queue. There is one queue for a Ray cluster, found or started by whoever comes first; without Ray
it is the one that TRANSFER_QUEUE_URL names, else one that this process starts for itself."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transfer_queue.compat.address import URL, Address, Found, from_environment
from transfer_queue.compat.conf import Settings, settings_of
from transfer_queue.compat.door import Door
from transfer_queue.compat.processes import QueueProcesses
from transfer_queue.errors import QueueTimeout

if TYPE_CHECKING:
    from transfer_queue.compat.client import TransferQueueClient

log = logging.getLogger(__name__)

TURN_S = 180.0  # for another thread of this process that finds or starts the queue


@dataclass(frozen=True)
class _Here:
    found: Found
    door: Door


class _Process:
    """What this process has; made anew after a fork."""

    def __init__(self, inherited: Address | None = None) -> None:
        self.lock = threading.RLock()
        self.here: _Here | None = None
        self.inherited = inherited  # the queue of the process from which this one was forked
        self.warned = False  # that others do not find its queue


_process = _Process()
_forked: list[_Process] = []  # never let go: closing the sockets of another process would disturb both


def init(conf: Any = None) -> Any:
    """Find the queue, or start it, and connect this process; at once where it is connected. Returns `conf`.

    conf: TransferQueue's configuration (see `conf`), for whoever starts the queue; others' is not looked at. Raises ValueError (conf), RuntimeError,
    OSError or QueueTimeout where there is no queue and none can be started.
    """
    here = _process.here
    if here is None or here.door.lost:
        with _alone():
            here = _enter(lambda: _find() or _start(settings_of(conf)))
    _warn_of_two(here)
    return conf


def close() -> None:
    """End the queue for everybody: where this process started it, or it is the cluster's; one that TRANSFER_QUEUE_URL names is only left. Calls
    that wait or are under way fail with QueueGone. Nothing where there is none."""
    with _alone():
        here, _process.here, _process.inherited = _process.here, None, None
        if here is not None:
            here.found.end()  # first: what is under way ends with it
            here.door.close()


def entered() -> Door:
    """The door of this process. Raises RuntimeError where there is no queue yet."""
    here = _process.here
    if here is None:
        with _alone():
            here = _enter(_find_or_fail)
    _warn_of_two(here)
    return here.door


def get_client() -> TransferQueueClient:
    """The interface of the queue, row numbers included. Raises as `entered`."""
    from transfer_queue.compat.client import TransferQueueClient

    entered()
    return TransferQueueClient()


def get_metrics_endpoint() -> str | None:
    """Prometheus finds /metrics there: "host:port". None where `metrics.enabled` is not set, there is no queue, or another serves its metrics."""
    with contextlib.suppress(NoQueue):
        return entered().address.metrics
    return None


class NoQueue(RuntimeError):
    """`init` was not called."""


def _enter(find: Callable[[], Found]) -> _Here:
    """With the lock. The queue that was found is left again where it cannot be joined."""
    here = _process.here
    if here is not None and not here.door.lost:
        return here
    if here is not None:
        here.door.close()
        here.found.exit()
        _process.here, _process.inherited = None, None
    with contextlib.ExitStack() as failed:
        found = find()
        failed.callback(found.exit)
        here = _Here(found, Door(found.address))
        failed.pop_all()
    _process.here, _process.inherited = here, None
    return here


def _find() -> Found | None:
    """A queue that is there."""
    if _process.inherited is not None:
        return Found(_process.inherited)
    if _on_ray():
        from transfer_queue.compat import ray_host

        if URL in os.environ:
            log.warning("%s is not used: with Ray initialised, all processes of the cluster use its one queue", URL)
        return ray_host.find()
    address = from_environment()
    return None if address is None else Found(address)


def _find_or_fail() -> Found:
    found = _find()
    if found is None:
        raise NoQueue("this process has no queue: call transfer_queue.init() first")
    return found


def _start(settings: Settings) -> Found:
    if _on_ray():
        from transfer_queue.compat import ray_host

        return ray_host.start(settings)
    queue = QueueProcesses(settings)
    return Found(queue.address, queue.close, queue.close, queue.disown, private=True)


def _on_ray() -> bool:
    """Ray is not imported for the question."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(getattr(ray, "is_initialized", bool)())


def _warn_of_two(here: _Here) -> None:
    """TransferQueue's own `init` brings Ray up; a program that relies on it has two queues here, and its workers wait for what never comes."""
    if here.found.private and not _process.warned and _on_ray():
        _process.warned = True
        log.warning(
            "this process started a queue of its own, and Ray was initialised after it: processes of the cluster do not find that queue, but another "
            "one. Call ray.init() before transfer_queue.init()"
        )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    lock = _process.lock
    if not lock.acquire(timeout=TURN_S):
        raise QueueTimeout(f"another thread of this process has been finding or starting the queue for {TURN_S:g} s: see what it waits for")
    try:
        yield
    finally:
        lock.release()


@atexit.register
def _at_exit() -> None:
    """A queue of this process's own ends with it; others hear that it left."""
    here, _process.here = _process.here, None
    if here is not None:
        here.door.close()
        here.found.exit()


def _after_fork() -> None:
    global _process
    parent = _process
    _forked.append(parent)
    address = parent.inherited
    if parent.here is not None:
        parent.here.found.disown()
        address = parent.here.found.address
    _process = _Process(address)


os.register_at_fork(after_in_child=_after_fork)
