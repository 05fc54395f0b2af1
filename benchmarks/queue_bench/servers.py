"""A controller or a shard of ours in a process of its own, as a run has them; it ends with whoever started it."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.queue_bench.answering import answer
from transfer_queue.controller import server as controller
from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.moves import Moves
from transfer_queue.messages import Event
from transfer_queue.security import Security
from transfer_queue.shard import server as shard

UP_S = 30.0


class Deaf:
    """Keeps no event, as the observer of `python -m transfer_queue controller`: the benchmark would else measure a growing list."""

    def on_moves(self, moves: Moves, t_s: float) -> None:
        pass

    def on_event(self, event: Event) -> None:
        pass


class Server:
    def controller(self, config: dict[str, Any], security: dict[str, Any] | None) -> dict[str, Any]:
        core, keys = msgspec.convert(config, CoreConfig), _keys(security)
        return _started(lambda ready: controller.serve(core, Deaf, bind="tcp://127.0.0.1:0", security=keys, ready=ready))

    def shard(self, name: str, url: str, security: dict[str, Any] | None, settings: dict[str, Any]) -> dict[str, Any]:
        keys = _keys(security)
        return _started(lambda ready: shard.serve(name, url, keys, ready=ready, **settings))


def _keys(security: dict[str, Any] | None) -> Security | None:
    return None if security is None else msgspec.convert(security, Security)


def _started(serve: Callable[[Callable[[str], None]], Any]) -> dict[str, Any]:
    up, endpoints = threading.Event(), list[str]()

    def ready(endpoint: str) -> None:
        endpoints.append(endpoint)
        up.set()

    def run() -> None:
        try:
            serve(ready)
        except BaseException:  # the process is there for this thread alone
            traceback.print_exc()
        os._exit(1)

    threading.Thread(target=run, daemon=True).start()
    if not up.wait(UP_S):
        raise TimeoutError(f"not up within {UP_S:g} s")
    return {"endpoint": endpoints[0]}


if __name__ == "__main__":
    answer(Server())
    os._exit(0)  # the serving thread has no end of its own
