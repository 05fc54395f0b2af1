"""The process of a controller that keeps a journal: as `controller.server.serve`, and back where it was when it is started again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.core import Core
from transfer_queue.controller.runtime import Observer
from transfer_queue.controller.server import Server, router
from transfer_queue.draining import drains
from transfer_queue.journal.recovery import open_journal
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.journal.snapshot import save
from transfer_queue.security import Security
from transfer_queue.security import bind as bind_socket

ENDPOINT = "endpoint"  # file of the folder: where members find this controller, at every start


def serve(
    config: CoreConfig,
    observer_factory: Callable[[], Observer],
    journal: JournalSettings,
    *,
    bind: str,
    security: Security | None,
    ready: Callable[[str], None],
    grace_s: float = 30.0,
    attach: Callable[[Core], None] | None = None,
    drain_s: float | None = None,
) -> None:
    """As `transfer_queue.controller.server.serve`. `bind` counts at the first start: later ones bind the same endpoint again.

    `config.comeback_s` > 0 tells members to wait for a controller that is gone; without it they end with the first one.
    Raises JournalError besides.
    """
    opened = open_journal(journal, config, observer_factory(), (lambda core: None) if attach is None else attach)
    opened.core.measure_cpu_by(time.thread_time)
    try:
        server = Server(opened.core, router(), security, opened.clock, opened.journal, drain_s)
        try:
            with drains(server.drain, drain_s is not None):
                ready(_bind(server, Path(journal.folder) / ENDPOINT, bind, security))
                if opened.back:
                    server.shards.remind()
                server.run(grace_s)
        finally:
            server.close()
        opened.journal.close()
    finally:
        os.close(opened.holder)


def _bind(server: Server, known: Path, bind: str, security: Security | None) -> str:
    endpoint = bind_socket(server.socket, known.read_text() if known.exists() else bind, security)[0]
    if not known.exists():
        save(known, [endpoint.encode()])
    return endpoint
