"""Where the queue of this process is, and how it is found without Ray: `TRANSFER_QUEUE_URL`, and `TRANSFER_QUEUE_KEY` where the queue has keys."""

from __future__ import annotations

import os

from transfer_queue.messages import Record
from transfer_queue.security import Security

URL, KEY = "TRANSFER_QUEUE_URL", "TRANSFER_QUEUE_KEY"


class Address(Record, frozen=True):
    """All that a process needs to join."""

    url: str  # of the controller
    security: Security | None = None  # a worker's keys
    metrics: str | None = None  # "host:port" of the Prometheus endpoint


def from_environment() -> Address | None:
    """None: it names none. Raises OSError or ValueError for a key file that cannot be used."""
    url = os.environ.get(URL)
    if not url:
        return None
    path = os.environ.get(KEY)
    return Address(url, Security.load(path).worker() if path else None)
