"""Keyed partitions as a snapshot or an image keeps them, and back: rows in the order of their keys, without the slots that they happen to have."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.keyed.cells import NOTHING, Cells
from transfer_queue.controller.keyed.handling import Keyed
from transfer_queue.controller.keyed.partition import Partition
from transfer_queue.messages import NOWHERE, CellType, Record


class FrozenCells(Record, frozen=True):
    """Of R rows."""

    types: list[CellType]
    type: np.ndarray  # [R] as in `Cells`
    places: np.ndarray  # [R, 4], NOWHERE without a cell


class FrozenTask(Record, frozen=True):
    sets: list[list[str]]  # of columns that it is asked for, the last one at the end
    had: np.ndarray  # [R] bool


class FrozenPartition(Record, frozen=True):
    """R rows."""

    keys: list[str]
    numbers: np.ndarray  # [R]
    tags: list[bytes]
    columns: dict[str, FrozenCells]
    tasks: dict[str, FrozenTask]


def freeze(keyed: Keyed) -> dict[str, FrozenPartition]:
    return {name: _frozen(partition) for name, partition in keyed.partitions.items()}


def thaw(keyed: Keyed, frozen: dict[str, FrozenPartition]) -> None:
    """Into one without partitions. Blocks are held anew."""
    for name, old in frozen.items():
        keyed.partitions[name] = _thawed(Partition(name, keyed.runtime.blocks), old)


def _frozen(partition: Partition) -> FrozenPartition:
    slots = partition.all()
    return FrozenPartition(
        keys=[*partition.slots],
        numbers=partition.table.number[slots],
        tags=[partition.tags[slot] for slot in slots.tolist()],
        columns={name: _cells(cells, slots) for name, cells in partition.columns.items()},
        tasks={name: FrozenTask([[*names] for names in task.sets], task.had[slots]) for name, task in partition.tasks.items()},
    )


def _cells(cells: Cells, slots: np.ndarray) -> FrozenCells:
    types, places = cells.type[slots], cells.places[slots]
    places[types <= NOTHING] = NOWHERE
    return FrozenCells([*cells.types], types, places)


def _thawed(partition: Partition, frozen: FrozenPartition) -> Partition:
    slots = partition.restore(frozen.keys, frozen.numbers, frozen.tags)
    for name, old in frozen.columns.items():
        cells = partition.columns[name] = Cells()
        cells.cover(partition.table.used)
        cells.restore(slots, list(old.types), old.type, old.places)
        partition.blocks.hold(old.places)
    for name, task in frozen.tasks.items():
        partition.restore_task(name, [tuple(names) for names in task.sets], slots[task.had])
    return partition
