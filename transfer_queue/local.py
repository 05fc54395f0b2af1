"""A whole queue inside one process, for notebooks and tests: the real controller and shards, each in a thread.

    with LocalQueue([spec], shards=2) as queue:
        with queue.client("rollout-0", "rollout") as client: ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, overload

from transfer_queue.client import QueueClient
from transfer_queue.controller import server as controller
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.moves import Moves
from transfer_queue.errors import QueueGone, QueueTimeout
from transfer_queue.keyed import KeyedClient
from transfer_queue.messages import Event, StatusRecord, TopicSpec
from transfer_queue.security import Security
from transfer_queue.shard import server as shard
from transfer_queue.shard.store import KEEP_BYTES

END_S = 10.0  # deadline of start and end


class Events(Sequence[Event]):
    """Every event of the run, in order: the observer of a LocalQueue."""

    def __init__(self) -> None:
        self._parts: list[Event | tuple[Moves, float]] = []  # groups that moved together are told apart only when somebody looks

    def on_event(self, event: Event) -> None:
        self._parts.append(event)

    def on_moves(self, moves: Moves, t_s: float) -> None:
        self._parts.append((moves, t_s))

    def __iter__(self) -> Iterator[Event]:
        for part in self._parts:
            yield from part[0].events(part[1]) if isinstance(part, tuple) else (part,)

    def __len__(self) -> int:
        return sum(len(part[0].gids) if isinstance(part, tuple) else 1 for part in self._parts)

    @overload
    def __getitem__(self, at: int) -> Event: ...

    @overload
    def __getitem__(self, at: slice) -> list[Event]: ...

    def __getitem__(self, at: int | slice) -> Event | list[Event]:
        return list(self)[at]


class LocalQueue:
    """Starts on entering, ends on leaving the context; an exception in a server is raised then."""

    def __init__(
        self,
        topics: list[TopicSpec],
        shards: int = 1,
        security: Security | None = None,
        capacity_bytes: int = 1 << 30,
        keep_bytes: int = KEEP_BYTES,
        attach: Callable[[Core], None] | None = None,
        **settings: Any,
    ) -> None:
        """`security` with the server's secret (`keys.make()`); `attach` as in `serve`; `settings` are further fields of CoreConfig."""
        self.config = CoreConfig(topics=topics, **settings)
        self.security = security
        self.events = Events()
        self.url = ""
        self._shards, self._attach = shards, attach
        self._capacity_bytes, self._keep_bytes = capacity_bytes, keep_bytes
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def __enter__(self) -> LocalQueue:
        self.url = self._start("controller", self._serve_controller)
        for index in range(self._shards):
            self._start(f"shard-{index}", partial(self._serve_shard, f"shard-{index}"))
        return self

    def client(self, name: str, role: str = "worker", timeout_s: float = 10.0) -> QueueClient:
        """Join as `name`; the caller closes it."""
        return QueueClient.connect(self.url, name=name, role=role, security=self._keys(), timeout_s=timeout_s)

    def keyed(self, name: str, role: str = "worker", timeout_s: float = 10.0) -> KeyedClient:
        """The same to keyed partitions."""
        return KeyedClient.connect(self.url, name=name, role=role, security=self._keys(), timeout_s=timeout_s)

    def status(self) -> StatusRecord:
        with QueueClient.outsider(self.url, security=self._keys()) as client:
            return client.status().result(END_S).status

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._end()
        finally:
            for thread in self._threads:
                thread.join(END_S)
        if self._errors and error is None:
            raise self._errors[0]

    def _end(self) -> None:
        controller = self._threads[0]
        if not controller.is_alive():  # the run ended by itself
            return
        try:
            self._stop()
        except (QueueGone, QueueTimeout):
            controller.join(END_S)
            if controller.is_alive():  # else it ended by itself just now
                raise

    def _stop(self) -> None:
        with QueueClient.outsider(self.url, security=self._keys()) as client:
            client.stop("local queue closed").result(END_S)
            for member, role in client.status().result(END_S).status.members.items():
                if role != "shard":  # closed without a word, or still open in a thread of the caller
                    client.member_dead(member.rpartition("#")[0], "local queue closed").result(END_S)

    def _serve_controller(self, ready: Callable[[str], None]) -> None:
        controller.serve(
            self.config, lambda: self.events, bind="tcp://127.0.0.1:0", security=self.security, ready=ready, attach=self._attach
        )

    def _serve_shard(self, name: str, ready: Callable[[str], None]) -> None:
        shard.serve(name, self.url, self._keys(), capacity_bytes=self._capacity_bytes, keep_bytes=self._keep_bytes, ready=ready)

    def _keys(self) -> Security | None:
        return self.security.worker() if self.security is not None else None

    def _start(self, name: str, serve: Callable[[Callable[[str], None]], None]) -> str:
        """Run `serve` in a thread until it tells its endpoint."""
        up = threading.Event()
        endpoints: list[str] = []

        def ready(endpoint: str) -> None:
            endpoints.append(endpoint)
            up.set()

        def run() -> None:
            try:
                serve(ready)
            except BaseException as error:  # re-raised in the caller's thread
                self._errors.append(error)
            finally:
                up.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        if not up.wait(END_S):
            raise QueueTimeout(f"{name} was not up within {END_S:g} s")
        if not endpoints:
            raise self._errors[-1]
        return endpoints[0]
