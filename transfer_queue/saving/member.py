"""A saver or a loader is a member of the run: it shows that it lives while it moves bytes, and leaves, however it ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueError
from transfer_queue.security import Security

BEAT_S = 1.0


@contextlib.contextmanager
def joined(url: str, role: str, security: Security | None, timeout_s: float) -> Iterator[QueueClient]:
    """There is one of each role at a time. What it held, and what it stored in vain, goes when it leaves."""
    with QueueClient.connect(url, name=role, role=role, security=security, timeout_s=timeout_s) as client:
        over = threading.Event()
        thread = threading.Thread(target=_beat, args=(client.attach(), over), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield client
        finally:
            over.set()
            thread.join(timeout_s)
            with contextlib.suppress(QueueError, OSError):  # then the controller notices by its silence
                client.leave().result(timeout_s)


def _beat(client: QueueClient, over: threading.Event) -> None:
    """What goes wrong here goes wrong for the other thread, too, and is told there."""
    with client, contextlib.suppress(QueueError, OSError):
        while not over.wait(BEAT_S):
            client.watch(wait_s=0.0).result(client.timeout_s)
