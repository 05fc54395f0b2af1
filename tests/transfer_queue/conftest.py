"""Settings of the queue's property tests, and one running queue for tests that only need some."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("transfer_queue", deadline=None, max_examples=60)  # no deadline an example: the machine may be loaded
settings.load_profile("transfer_queue")


@pytest.fixture(scope="module")
def queue() -> Iterator[object]:
    """Shared by the tests of a file, which join under names of their own and look at their own bytes only."""
    import queue_run

    from transfer_queue.local import LocalQueue

    with LocalQueue([queue_run.spec()], shards=2) as running:
        yield running
