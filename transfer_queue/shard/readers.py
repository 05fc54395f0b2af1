"""Who maps the arena: connections, the processes behind them, and the blocks that they keep from being reused.

A process that ends takes its holds with it, however it ended: the kernel tells by its pidfd, which the server's loop waits for beside its socket.
A connection that closes while its process lives on keeps its holds: arrays that were read through it may be in use. A child that a process forked
reads on borrowed time: when the parent has ended, what it held may be overwritten.
"""

from __future__ import annotations

import itertools
import os
import select
from collections import deque
from dataclasses import dataclass, field

from transfer_queue.shard.checks import split_owner
from transfer_queue.shard.extent import Writer
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.store import Store

MOST_PROCESSES = 1024
MOST_CONNECTIONS = 1 << 14
MOST_HAD = 8  # ranges that are remembered as a process's
MOST_HELD = 1 << 20  # blocks that one connection holds at a time, each hold counted
_WATCHED = hasattr(os, "pidfd_open") and hasattr(select, "epoll")


@dataclass(eq=False)
class Process:
    pid: int
    pidfd: int
    connections: set[bytes] = field(default_factory=set)
    quarantined: list[int] = field(default_factory=list)  # blocks of swept extents, which it may still write to
    ended: bool = False
    had: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_HAD))


@dataclass(eq=False)
class Connection:
    owner: str
    process: Process | None  # None: its end cannot be seen, so its holds end with the sweep of its owner
    holds: dict[int, list[int]] = field(default_factory=dict)  # hold → blocks
    held: int = 0  # blocks in all holds


class Readers:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._connections: dict[bytes, Connection] = {}
        self._processes: dict[int, Process] = {}  # by pidfd
        self._by_pid: dict[int, Process] = {}
        self._numbers = itertools.count(1)
        self._epoll = select.epoll() if _WATCHED else None
        self.ended: deque[tuple[str, int]] = deque(maxlen=MOST_CONNECTIONS)  # (owner, pid) of processes that ended, for whoever tells the controller

    def watched(self) -> list[int]:
        """Descriptors that are readable when `reap` has something to do."""
        return [] if self._epoll is None else [self._epoll.fileno()]

    def join(self, name: bytes, owner: str, pid: int | None) -> None:
        """Connection `name` maps the arena. `pid` is None where it means nothing here. Raises Refused where there is no such process."""
        split_owner(owner)
        old = self._connections.get(name)
        if old is not None and old.owner == owner and (old.process is None or old.process.pid == pid):
            return
        if old is not None:
            raise Refused("bad_request", f"this connection joined as {old.owner!r}: a connection has one owner and one process")
        self._make_room()
        process = None if pid is None or self._epoll is None else self._process(pid)
        self._connections[name] = Connection(owner, process)
        if process is not None:
            process.connections.add(name)

    def writer(self, name: bytes) -> Writer | None:
        """The process behind connection `name`, which may write to the arena by itself."""
        connection = self._connections.get(name)
        return None if connection is None else connection.process

    def hold(self, name: bytes, blocks: list[int]) -> tuple[int, list[int]]:
        """(number, where the extents of `blocks` begin), all of which are here."""
        connection = self._connections.get(name)
        if connection is None:
            raise Refused("bad_request", "this connection has not joined, or its process ended: only who maps the arena can hold; send Join, or Read")
        if not blocks:
            raise Refused("malformed", "a hold on no block keeps nothing: name the blocks that are read")
        if connection.held + len(blocks) > MOST_HELD:
            raise Refused("too_many", f"{connection.held} blocks are held and {len(blocks)} more are too many, the limit is {MOST_HELD}: let some go")
        offsets = self._store.offsets(blocks)
        self._store.hold(blocks)
        number = next(self._numbers)
        connection.holds[number] = blocks
        connection.held += len(blocks)
        return number, offsets

    def release(self, name: bytes, numbers: list[int]) -> None:
        connection = self._connections.get(name)
        if connection is None:
            return
        for number in numbers:
            blocks = connection.holds.pop(number, [])
            connection.held -= len(blocks)
            self._store.release(blocks)

    def quarantine(self, writer: Writer, blocks: list[int]) -> None:
        """For Store.sweep: these bytes are used again when the process that may still write to them is gone."""
        assert isinstance(writer, Process)
        self._store.hold(blocks)
        writer.quarantined += blocks

    def swept(self, owner: str) -> None:
        """`owner` ended. Where its process cannot be watched, this is the end of its holds."""
        for name in [name for name, found in self._connections.items() if found.owner == owner and found.process is None]:
            self._drop(name)

    def reap(self) -> None:
        """Processes that ended meanwhile let go of everything."""
        if self._epoll is None:
            return
        for pidfd, _ in self._epoll.poll(0):
            process = self._processes.pop(pidfd)
            del self._by_pid[process.pid]
            self._epoll.unregister(pidfd)
            os.close(pidfd)
            process.ended = True
            self.ended.extend((owner, process.pid) for owner in sorted({self._connections[name].owner for name in process.connections}))
            for name in list(process.connections):
                self._drop(name)
            self._store.release(process.quarantined)
            process.quarantined = []

    def close(self) -> None:
        for pidfd in self._processes:
            os.close(pidfd)
        self._processes.clear()
        if self._epoll is not None:
            self._epoll.close()

    def _process(self, pid: int) -> Process:
        """One pidfd a process. A number that is used again after a death is another process: the dead one is reaped first."""
        self.reap()
        found = self._by_pid.get(pid)
        if found is not None:
            return found
        if len(self._processes) >= MOST_PROCESSES:
            raise Refused("too_many", f"{MOST_PROCESSES} processes map this shard's memory, the limit: read by bytes, or add shards")
        if not 0 < pid < 1 << 31:
            raise Refused("malformed", f"pid={pid} is no process")
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise Refused("bad_request", f"pid={pid}: {error.strerror}; it ended, or is of another PID namespace: read by bytes") from error
        assert self._epoll is not None
        self._epoll.register(pidfd, select.EPOLLIN)
        process = self._processes[pidfd] = self._by_pid[pid] = Process(pid, pidfd)
        return process

    def _make_room(self) -> None:
        """Clients close without a word: the oldest connection that holds nothing is forgotten. Should it hold again, it is told to join."""
        if len(self._connections) < MOST_CONNECTIONS:
            return
        idle = next((name for name, connection in self._connections.items() if not connection.holds), None)
        if idle is None:
            raise Refused("too_many", f"{MOST_CONNECTIONS} connections hold blocks, the limit: read by bytes, or close clients that are not used")
        self._drop(idle)

    def _drop(self, name: bytes) -> None:
        connection = self._connections.pop(name)
        if connection.process is not None:
            connection.process.connections.discard(name)
        for blocks in connection.holds.values():
            self._store.release(blocks)
