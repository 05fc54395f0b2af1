"""Where the queue of this process is, and how it is found without Ray: `TRANSFER_QUEUE_URL`, and `TRANSFER_QUEUE_KEY` where the queue has keys."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from transfer_queue.messages import Record
from transfer_queue.security import Security

URL, KEY = "TRANSFER_QUEUE_URL", "TRANSFER_QUEUE_KEY"


class Address(Record, frozen=True):
    """All that a process needs to join."""

    url: str  # of the controller
    security: Security | None = None  # a worker's keys
    metrics: str | None = None  # "host:port" of the Prometheus endpoint


@dataclass(frozen=True)
class Found:
    """A queue, and what is ours to do with it."""

    address: Address
    end: Callable[[], None] = lambda: None  # for `close`
    exit: Callable[[], None] = lambda: None  # when this process ends without it
    disown: Callable[[], None] = lambda: None  # in a process that is forked from this one
    private: bool = False  # nobody but this process, and those forked from it, finds it


def from_environment() -> Address | None:
    """None: it names none. Raises OSError or ValueError for a key file that cannot be used."""
    url = os.environ.get(URL)
    if not url:
        return None
    path = os.environ.get(KEY)
    return Address(url, Security.load(path).worker() if path else None)
