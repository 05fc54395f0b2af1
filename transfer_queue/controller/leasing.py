"""A lease on its way to who asked: where its rows' columns lie."""

from __future__ import annotations

from transfer_queue.controller.leases import Lease
from transfer_queue.controller.store import gids_of
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import Rows, packed


def rows_of_lease(topic: TopicState, lease: Lease) -> Rows:
    """Rows of a group adjacent, in row order."""
    schema, store = topic.schema, topic.groups
    columns = [
        store.groups.places[lease.groups, schema.place_of[name]] if name in schema.shared else store.rows.places[lease.rows, schema.place_of[name]]
        for name in schema.consumers[lease.consumer].inputs
    ]
    gids, indices = lease.named = packed(gids_of(lease.keys)), packed(store.rows.index[lease.rows])
    return Rows(gids, indices, packed(store.rows.oldest[lease.rows]), packed(lease.newest), tuple(map(packed, columns)))
