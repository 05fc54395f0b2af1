"""What members ask of keyed partitions. A request that breaks a rule changes nothing; one that does not is carried out whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from transfer_queue.controller.errors import RequestError, bad
from transfer_queue.controller.keyed.cells import MOST_TYPES, check_cells
from transfer_queue.controller.keyed.partition import Partition
from transfer_queue.controller.keyed.tags import merged
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.tables import NONE
from transfer_queue.messages import (
    Cells,
    KeyedClear,
    KeyedEndTask,
    KeyedList,
    KeyedLook,
    KeyedPut,
    KeyedTake,
    Listed,
    OkCleared,
    OkEmpty,
    OkKeyed,
    OkKeyedTaken,
    OkListed,
    OkLooked,
    packed,
    unpacked,
)
from transfer_queue.messages.keyed import MOST_NAME, MOST_ROWS

MOST_PARTITIONS = 1024
MOST_COLUMNS = 1024  # of a partition
MOST_KEYS = 1 << 22  # of a partition
MOST_TASKS = 64  # of a partition
MOST_PLACES = 1 << 27  # keys x columns of a partition: 36 bytes each, whether there is a cell or not; see `partition.SPARSE`
MOST_TAG_BYTES = 1 << 30  # of a partition
MOST_CELLS = 1 << 23  # rows x columns of a request: 40 bytes each in a message
MOST_REPLY_BYTES = 1 << 28  # keys and tags of rows that are looked at, which may be named again and again
WAIT = "keyed"  # kind of what is parked


class Keyed:
    """All partitions; one without keys is none."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.partitions: dict[str, Partition] = {}

    # ------------------------------------------------------------ put, clear

    def put(self, request: KeyedPut) -> OkKeyed:
        rows = check_rows(request.keys, request.numbers, "nothing was written")
        _check_name("partition", request.partition)
        _check_counts(request, rows)
        _check_once(request.keys or unpacked(request.numbers).tolist())
        if request.tags and len(request.tags) != rows:
            raise bad(f"{len(request.tags)} tags for {rows} rows: they would land on other rows; nothing was written. Give a tag a row, or none")
        columns = {name: (cells, check_cells(name, cells, rows)) for name, cells in request.columns.items()}
        self.runtime.blocks.check(table for _, table in columns.values())
        partition = self.partitions.get(request.partition)
        found = _find(partition, request.keys, request.numbers)
        tags = self._merge(partition, found, request.tags)
        self._check_room(partition, request, int(np.count_nonzero(found == NONE)) if request.keys else 0)
        _check_tag_room(partition, found, request, tags)
        if request.keys:
            partition = partition or self._new(request.partition)
            found = self._make(partition, request.keys, found)
        there = np.flatnonzero(found != NONE)
        if partition is None or not len(there):
            self._refuse(columns.values(), np.arange(rows))
            return OkKeyed(numbers=packed(found), tags=[b""] * rows, names=[])
        return self._written(partition, found, there, tags, columns)

    def _written(
        self, partition: Partition, found: np.ndarray, there: np.ndarray, tags: list[bytes], columns: dict[str, tuple[Cells, np.ndarray]]
    ) -> OkKeyed:
        slots = found[there]
        partition.write(slots, columns, there)
        if tags:
            partition.tag([tags[at] for at in there.tolist()], slots)
        self._refuse(columns.values(), np.flatnonzero(found == NONE))
        partition.note(slots)
        self._wake(partition)
        numbers = np.full(len(found), -1, dtype=np.int64)
        numbers[there] = partition.table.number[slots]
        kept = [b"" if slot == NONE else partition.tags[slot] for slot in found.tolist()]
        return OkKeyed(numbers=packed(numbers), tags=kept, names=partition.common(slots))

    def _merge(self, partition: Partition | None, found: np.ndarray, tags: list[bytes]) -> list[bytes]:
        """What the tags will be, one a row; [] where they stay."""
        old = [b"" if slot == NONE or partition is None else partition.tags[slot] for slot in found.tolist()] if tags else []
        return [merged(before, new) for before, new in zip(old, tags, strict=True)]

    def _check_room(self, partition: Partition | None, request: KeyedPut, new: int) -> None:
        """Raises RequestError where this would be too much."""
        for key in request.keys:
            _check_name("key", key)
        columns = {} if partition is None else partition.columns
        keys = 0 if partition is None else len(partition)
        if len({*columns, *request.columns}) > MOST_COLUMNS or keys + new > MOST_KEYS:
            raise bad(
                f"partition {request.partition!r} has {keys} keys and {len(columns)} columns, {MOST_KEYS} and {MOST_COLUMNS} are the most: nothing "
                "was written; clear what is not read any more"
            )
        wide = len({*columns, *request.columns})
        if (keys + new) * wide > MOST_PLACES:
            raise bad(
                f"partition {request.partition!r} would have {keys + new} keys and {wide} columns, {MOST_PLACES} of keys x columns are the most, "
                "whether there is a cell or not: nothing was written; use fewer columns, or more partitions"
            )
        for name, cells in request.columns.items():
            if name in columns and not columns[name].room_for(cells.types):
                raise bad(f"column {name!r} has {MOST_TYPES} types of cells, the most: nothing was written; pad its values to fewer shapes")
        if partition is None and request.keys and len(self.partitions) >= MOST_PARTITIONS:
            raise bad(f"partition={request.partition!r} would be the {MOST_PARTITIONS + 1}th: nothing was written; clear one of the others")

    def _new(self, name: str) -> Partition:
        self.partitions[name] = partition = Partition(name, self.runtime.blocks)
        return partition

    def _make(self, partition: Partition, keys: Sequence[str], found: np.ndarray) -> np.ndarray:
        """Slots of all."""
        new = np.flatnonzero(found == NONE)
        if len(new):
            found[new] = partition.make([keys[at] for at in new.tolist()], self.runtime.numbers(len(new)))
        return found

    def _refuse(self, columns: Iterable[tuple[Cells, np.ndarray]], rows: np.ndarray) -> None:
        """What was stored for rows that are gone."""
        tables = [table[rows] for _, table in columns]
        if tables and len(rows):
            self.runtime.blocks.refuse(np.concatenate(tables))

    def clear(self, request: KeyedClear) -> OkCleared:
        check_rows(request.keys, request.numbers, "nothing was cleared")
        partition = self.partitions.get(request.partition)
        found = _find(partition, request.keys, request.numbers)
        slots = np.array([*dict.fromkeys(found[found != NONE].tolist())], dtype=np.int64)
        if partition is not None and len(slots):
            partition.clear(slots)
            if not len(partition):
                del self.partitions[request.partition]
        return OkCleared(cleared=len(slots))

    # ------------------------------------------------------------ look, list

    def look(self, request: KeyedLook) -> OkLooked:
        check_rows(request.keys, request.numbers, "nothing was looked for")
        partition = self.partitions.get(request.partition)
        found = _find(partition, request.keys, request.numbers)
        there = np.flatnonzero(found != NONE)
        if partition is None or not len(there):
            return OkLooked(found=b"", numbers=b"", keys=[], tags=[], names=[], columns={})
        slots = found[there]
        _check_reply(partition, request, slots)
        names = partition.common(slots)
        have = set(names)
        wanted = names if request.names is None else [name for name in dict.fromkeys(request.names) if name in have]
        _check_cells("read", len(slots), len(wanted))
        for name in wanted:
            _check_there(partition, name, slots)
        return OkLooked(
            found=packed(there),
            numbers=packed(partition.table.number[slots]),
            keys=[partition.keys[slot] for slot in slots.tolist()] if request.numbers else [],
            tags=[partition.tags[slot] for slot in slots.tolist()] if request.tags else [],
            names=names,
            columns={name: partition.columns[name].message(slots) for name in wanted},
        )

    def list_all(self, request: KeyedList) -> OkListed:
        names = self.partitions if request.partitions is None else [name for name in dict.fromkeys(request.partitions) if name in self.partitions]
        return OkListed(partitions={name: _listed(self.partitions[name]) for name in names})

    # ------------------------------------------------------------ take

    def take(self, request: KeyedTake, last: bool) -> OkKeyedTaken | None:
        if not 1 <= request.at_least <= request.limit <= MOST_ROWS:
            raise bad(f"at_least={request.at_least}, limit={request.limit}: 1 <= at_least <= limit <= {MOST_ROWS}; nothing was taken")
        if len(request.names) > MOST_COLUMNS:
            raise bad(f"names has {len(request.names)} columns, {MOST_COLUMNS} are the most of a partition: nothing was taken; name those you read")
        for what, name in [("partition", request.partition), ("task", request.task), *(("column", name) for name in request.names)]:
            _check_name(what, name)
        nothing = OkKeyedTaken(partition=request.partition, task=request.task) if last else None
        partition = self.partitions.get(request.partition)
        if partition is None:
            return nothing
        if request.task not in partition.tasks and len(partition.tasks) >= MOST_TASKS:
            raise bad(
                f"task={request.task!r} would be the {MOST_TASKS + 1}th of {request.partition!r}: nothing was taken; end one that is over "
                "(`end_task`), or use one of those before"
            )
        names = tuple(sorted({*request.names}))
        task = partition.task(request.task, names)
        if task.ready(names) < request.at_least:
            return nothing
        slots = task.take(names, request.limit, partition.table.number)
        keys = [partition.keys[slot] for slot in slots.tolist()]
        return OkKeyedTaken(partition=partition.name, task=request.task, keys=keys, numbers=packed(partition.table.number[slots]))

    def take_back(self, reply: OkKeyedTaken) -> None:
        """It never came to who asked."""
        partition = self.partitions.get(reply.partition)
        task = None if partition is None else partition.tasks.get(reply.task)
        if partition is None or task is None:
            return
        slots = partition.of_numbers(unpacked(reply.numbers))
        slots = slots[slots != NONE]
        task.give_back(slots)
        partition.note(slots)
        self._wake(partition)

    def end_task(self, request: KeyedEndTask) -> OkEmpty:
        partition = self.partitions.get(request.partition)
        if partition is not None and partition.tasks.pop(request.task, None) is not None:
            self._wake(partition)
        return OkEmpty()

    def _wake(self, partition: Partition) -> None:
        self.runtime.wake(WAIT, partition.name)


def check_rows(keys: Sequence[str], numbers: bytes, otherwise: str) -> int:
    """How many are named. Raises RequestError where nothing is, or by both."""
    rows = len(keys) or len(numbers) // 8
    if bool(keys) == bool(numbers) or len(numbers) % 8:
        raise bad(f"{len(keys)} keys and {len(numbers)} bytes of numbers: name one key or more, or numbers of 8 bytes each; {otherwise}")
    if rows > MOST_ROWS:
        raise bad(f"{rows} rows in one request, {MOST_ROWS} are the most: {otherwise}; name fewer at once")
    return rows


def _check_counts(request: KeyedPut, rows: int) -> None:
    """Before anything is made of its size."""
    if len(request.columns) > MOST_COLUMNS:
        raise bad(f"a put of {len(request.columns)} columns, {MOST_COLUMNS} are the most of a partition: nothing was written; use fewer")
    _check_cells("written", rows, len(request.columns))
    for name, cells in request.columns.items():
        _check_name("column", name)
        if len(cells.types) > MOST_TYPES:
            raise bad(f"column {name!r} has {len(cells.types)} types of cells, {MOST_TYPES} are the most: nothing was written; pad to fewer shapes")


def _check_cells(what: str, rows: int, columns: int) -> None:
    if rows * columns > MOST_CELLS:
        raise bad(f"{rows} rows of {columns} columns, {MOST_CELLS} cells are the most of a request: nothing was {what}; name fewer at once")


def _check_tag_room(partition: Partition | None, found: np.ndarray, request: KeyedPut, tags: list[bytes]) -> None:
    """`tags` as they will be."""
    kept = 0 if partition is None else partition.tag_bytes
    there = found != NONE
    old = 0 if partition is None or not tags else sum(len(partition.tags[slot]) for slot in found[there].tolist())
    new = sum(len(tag) for tag, is_there in zip(tags, there.tolist(), strict=True) if is_there or request.keys) if tags else 0
    if new > old and kept + new - old > MOST_TAG_BYTES:
        raise bad(
            f"tags of partition {request.partition!r} would have {kept + new - old} bytes, {MOST_TAG_BYTES} are the most, for a list carries all: "
            "nothing was written; put what is large into a column, or clear keys that are not read any more"
        )


def _check_reply(partition: Partition, request: KeyedLook, slots: np.ndarray) -> None:
    """Rows may be named more than once."""
    nbytes = sum(len(partition.keys[slot]) for slot in slots.tolist()) if request.numbers else 0
    nbytes += sum(len(partition.tags[slot]) for slot in slots.tolist()) if request.tags else 0
    if nbytes > MOST_REPLY_BYTES:
        raise bad(
            f"keys and tags of {len(slots)} rows of partition {partition.name!r} have {nbytes} bytes, {MOST_REPLY_BYTES} are the most of a reply: "
            "nothing was read; name fewer rows at once, each once"
        )


def _check_once(rows: Sequence[str] | Sequence[int]) -> None:
    seen: set[str | int] = set()
    for row in rows:
        if row in seen:
            raise bad(f"key or number {row!r} is named twice: which of its rows counts would be chance; nothing was written. Name each once")
        seen.add(row)


def _find(partition: Partition | None, keys: Sequence[str], numbers: bytes) -> np.ndarray:
    """[R] slots, NONE for what is not there."""
    if partition is None:
        return np.full(len(keys) or len(numbers) // 8, NONE, dtype=np.int64)
    return partition.of_keys(keys) if keys else partition.of_numbers(unpacked(numbers))


def _check_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= MOST_NAME:
        raise bad(f"{what}={name[:64]!r}… has {len(name)} characters: a name has 1 to {MOST_NAME}; nothing was done. Choose another")


def _check_there(partition: Partition, name: str, slots: np.ndarray) -> None:
    """Raises RequestError for cells whose bytes went with their shard: missing is never left out silently."""
    if lost := partition.lost_in(name, slots):
        more = f" and {len(lost) - 8} more" if len(lost) > 8 else ""
        raise RequestError(
            "shard_lost",
            f"column {name!r} of keys {lost[:8]}{more} in partition {partition.name!r} went with its shard: it can be read by nobody; put it again, "
            "or clear these keys",
        )


def _listed(partition: Partition) -> Listed:
    slots = partition.all()
    return Listed([*partition.slots], [partition.tags[slot] for slot in slots.tolist()], packed(partition.table.number[slots]))
