"""A shard ended, and with it the cells that lay there. Nobody can make them again but who put them: whoever asks for one is told. It looks at
everything."""

from __future__ import annotations

from transfer_queue.controller.keyed.handling import Keyed
from transfer_queue.controller.keyed.partition import Partition


def lose_shard(keyed: Keyed, shard: int) -> None:
    """Blocks that went with it: `Blocks.lose` was told which."""
    for partition in keyed.partitions.values():
        lost = _lose(partition)
        if lost:
            keyed.runtime.emit("keyed", topic=partition.name, reason="shard_lost", data={"shard": shard, "cells": lost})


def _lose(partition: Partition) -> int:
    """How many cells."""
    slots, count = partition.all(), 0
    for cells in partition.columns.values():
        mine = slots[cells.type[slots] > 0]
        gone = mine[partition.blocks.went(cells.places[mine])]
        if len(gone):
            partition.blocks.release(cells.lose(gone))
            count += len(gone)
    if count:
        partition.note(slots)
    return count
