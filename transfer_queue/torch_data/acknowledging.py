"""Saying that rows are done, by the process that is through with them.

A lease belongs to the incarnation that took it, which is a worker process; so it is acknowledged in that one's name, over a connection of our own. A
worker that died takes its leases with it: what was got from it and not yet acknowledged comes a second time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueError
from transfer_queue.torch_data.receipts import Receipt
from transfer_queue.torch_data.settings import Source
from transfer_queue.torch_data.view import View

Who = tuple[str, int]  # member, incarnation


class Acknowledger:
    """Of what one process gets. Batches of a worker come in the order in which it made them."""

    def __init__(self, source: Source) -> None:
        self.refused = 0  # rows whose acknowledgement came too late: their lease ran out, their worker or their group had ended
        self._source = source
        self._view: View | None = None
        self._clients: dict[Who, QueueClient] = {}
        self._current: Receipt | None = None
        self._keys: dict[tuple[Who, int], list[tuple[int, int]]] = defaultdict(list)  # of leases that go on in a later batch

    def handed(self, receipt: Receipt) -> None:
        """This batch is out of our hands now."""
        self._current = receipt
        if receipt.registration is not None:
            source = self._source
            client = QueueClient(source.url, source.security, receipt.registration, source.timeout_s, source.map_memory)
            self._clients[receipt.member, receipt.incarnation] = client
            self._view = View(source, client.topic(source.topic))

    def client(self, receipt: Receipt) -> QueueClient:
        """Speaks for the worker that the batch came from."""
        return self._clients[receipt.member, receipt.incarnation]

    def through(self) -> None:
        """Whoever got the last batch is done with it, and so are the leases that end with it.

        Of a terminal consumer nothing is said: a commit does that. Raises RuntimeError where outputs are owed.
        """
        receipt, view = self._current, self._view
        if receipt is None or view is None or view.consumer.terminal:
            return
        if view.owes:
            raise RuntimeError(
                f"the next batch of {self._source.consumer!r} was asked for before the last one was written back: its rows wait for columns "
                f"{view.owes}; iterate over a QueueLoader and call its write_back(columns) for every batch"
            )
        self._current = None
        for lease, keys in self._finished(receipt):
            self._acknowledge(receipt, lease, keys)

    def write_back(self, columns: Mapping[str, Any], weights: m.ModelVersion | None) -> list[int]:
        """Outputs of the current batch, and with them its acknowledgement. Returns the gids that were refused."""
        if self._current is None:
            raise RuntimeError("write_back: there is no batch, or it was written back already; call it once for every batch")
        receipt, closed = self._current, list[int]()
        for lease, keys in self._finished(receipt):
            if keys:  # a batch that is to be written back is one lease; others had nothing left to be read
                closed = self.client(receipt).write_back(self._source.topic, self._source.consumer, lease, keys, columns, weights).closed
            else:
                self._acknowledge(receipt, lease, keys)
        self._current = None
        return closed

    def close(self) -> None:
        """What was not acknowledged never will be: its worker leaves, and it goes to others."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._keys.clear()
        self._current = None

    def _finished(self, receipt: Receipt) -> list[tuple[int, list[tuple[int, int]]]]:
        """(lease, all of its rows) of those that end with this batch; rows of the others are kept for their end."""
        who, keys, start, finished = (receipt.member, receipt.incarnation), receipt.keys(), 0, []
        for part in receipt.parts:
            mine = self._keys[who, part.lease]
            mine += keys[start : start + part.count]
            start += part.count
            if part.last:
                finished.append((part.lease, self._keys.pop((who, part.lease))))
        return finished

    def _acknowledge(self, receipt: Receipt, lease: int, keys: list[tuple[int, int]]) -> None:
        """What does not arrive is redelivery, never loss; and why, its worker says when the next batch is asked for."""
        closed: set[int] = {gid for gid, _ in keys}
        try:
            closed = set(self.client(receipt).write_back(self._source.topic, self._source.consumer, lease, keys, {}).closed)
        except QueueError as error:
            if error.code != "stale_incarnation":
                raise
        except OSError:  # QueueTimeout, QueueGone
            pass
        self.refused += sum(gid in closed for gid, _ in keys)
