"""A saver or a loader is a member of the run: it shows that it lives while it moves bytes, and leaves, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueError
from transfer_queue.security import Security


@contextlib.contextmanager
def joined(url: str, role: str, security: Security | None, timeout_s: float) -> Iterator[QueueClient]:
    """There is one of each role at a time. What it held, and what it stored in vain, goes when it leaves."""
    with QueueClient.connect(url, name=role, role=role, security=security, timeout_s=timeout_s) as client:
        client.keep_alive()  # what goes wrong there goes wrong for us, too, and is told here
        try:
            yield client
        finally:
            with contextlib.suppress(QueueError, OSError):  # then the controller notices by its silence
                client.leave().result(timeout_s)
