"""A queue of keyed partitions as children of this process: controller, shards and, where it is wanted, the metrics endpoint. They end with it,
however it ends."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from transfer_queue import keys
from transfer_queue.compat.address import Address
from transfer_queue.compat.conf import Settings
from transfer_queue.controller.config import CoreConfig
from transfer_queue.operation.child import Child
from transfer_queue.security import Security, is_loopback

LOOPBACK = "127.0.0.1"
START_S = 60.0  # until all are up, on a machine that starts much else
HEARTBEAT_S = 60.0  # a shard without a sign for so long is dead; a shorter time would end those of a machine that is only busy
DRAIN_S = 1.0  # what a part still waits once this process is gone


class QueueProcesses:
    """Up once it is made. Raises ChildFailed, OSError, ValueError."""

    def __init__(self, settings: Settings, host: str = LOOPBACK) -> None:
        """`host`: an address of this machine, that members reach; beyond loopback the queue has keys."""
        self._children: list[Child] = []
        self._deadline = time.monotonic() + START_S
        self._bind = f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"
        with tempfile.TemporaryDirectory(prefix="af-queue-") as folder, ExitStack() as failed:
            failed.callback(self.close)
            self.address = self._start(settings, host, Path(folder))
            failed.pop_all()

    def _start(self, settings: Settings, host: str, folder: Path) -> Address:
        file = folder / "queue.json"
        file.write_bytes(msgspec.json.encode(CoreConfig(topics=[], keyed_only=True, heartbeat_s=HEARTBEAT_S)))
        server, client = (None, None) if is_loopback(self._bind) else keys.write(folder / "keys")
        last = ("--drain-s", str(DRAIN_S))
        url = self._child("controller", "controller", str(file), "--bind", self._bind, *last, *_key(server))
        joins = ("--controller", url, *_key(client))
        for index in range(settings.shards):
            size = ("--capacity-bytes", str(settings.capacity_bytes))
            self._child(f"shard-{index}", "shard", "--index", str(index), "--bind", self._bind, *size, *last, *joins)
        metrics = None
        if settings.metrics_port is not None:
            where = f"[{host}]" if ":" in host else host
            told = self._child("metrics", "metrics", f"{where}:{settings.metrics_port}", *joins)
            metrics = told.removeprefix("http://").removesuffix("/metrics")
        return Address(url, None if client is None else Security.load(client), metrics)

    def _child(self, name: str, *arguments: str) -> str:
        """Where it listens."""
        child = Child(name, *arguments)
        self._children.append(child)
        return child.endpoint(self._deadline)

    def close(self) -> None:
        """They end at once: what they hold is nobody's any more."""
        for child in reversed(self._children):
            child.close()
        self._children.clear()

    def disown(self) -> None:
        """In a process that was forked from the one that started them: they are to end with that one."""
        for child in self._children:
            child.disown()


def _key(path: Path | None) -> tuple[str, ...]:
    return () if path is None else ("--key", str(path))
