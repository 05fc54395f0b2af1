"""A member's door to keyed partitions: one method a request. Each carries at most one request to the controller and one to each shard that it
concerns; only a read whose rows are overwritten meanwhile takes more.

A client belongs to one thread; `attach` makes another connection of the same member for another thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from transfer_queue import messages as m
from transfer_queue.codec.objects import pack_objects, unpack_objects
from transfer_queue.codec.packed import offsets_of
from transfer_queue.codec.text import unpack_blobs
from transfer_queue.errors import Gone, KeysChanged, QueueError, QueueGone, QueueTimeout
from transfer_queue.keyed.found import Found, Part
from transfer_queue.keyed.naming import check_size, name_of, named, names_of
from transfer_queue.keyed.packing import Typed, typed_columns
from transfer_queue.keyed.taken import Kept
from transfer_queue.layout import Layout
from transfer_queue.pending import Pending
from transfer_queue.transfer import Transfer

LOOKS = 3  # at rows that are overwritten or cleared while they are read
HOLDERS = 4  # partitions that are named where there is no room
Tag = Mapping[str, Any]
Asked = tuple[str, str, frozenset[str]]  # partition, task, columns


@dataclass(frozen=True)
class Put:
    """What R rows are after a put."""

    numbers: np.ndarray  # [R] int64; -1: it was cleared meanwhile, nothing was written
    tags: list[dict[str, Any]]  # [R] merged; {}: there is none
    names: list[str]  # columns that all rows have that are there, sorted


class KeyedClient(Transfer):
    """`connect` joins a run (see Connection)."""

    def put(
        self,
        partition: str,
        keys: Sequence[str] = (),
        columns: Mapping[str, Any] | None = None,
        tags: Sequence[Tag | None] | None = None,
        *,
        numbers: Sequence[int] | np.ndarray | None = None,
    ) -> Put:
        """Write a row a key, whole or not at all: cells of `columns` are overwritten, others stay; `tags` are merged into those before.

        Partition, keys and columns appear with their first put. columns: see `keyed.packing.typed`. numbers: instead of keys, those of an earlier
        put; what was cleared since is left out. Raises ValueError or TypeError (names, columns, tags, size), QueueError, QueueTimeout, QueueGone.
        """
        fields = named(keys, numbers) | {"partition": name_of("partition", partition)}
        rows = len(fields["keys"]) or len(fields["numbers"]) // 8
        packed_tags = _packed_tags(tags, rows)
        typed = typed_columns(rows, {name_of("column", name): column for name, column in (columns or {}).items()})
        check_size(fields, packed_tags, typed, rows)

        def build(places: dict[str, np.ndarray]) -> m.KeyedPut:
            cells = {name: column.cells(places[name]) for name, column in typed.items()}
            return m.KeyedPut(member="", incarnation=0, tags=packed_tags, columns=cells, **fields)

        try:
            _, reply = self.told(lambda: self._store(typed, rows), build, self.timeout_s)
        except QueueError as error:
            if error.code != "capacity":
                raise
            raise QueueError(error.code, f"{error.message}; {self._holders()}") from error
        return Put(m.unpacked(reply.numbers), _unpacked_tags(reply.tags), reply.names)

    def get(
        self,
        partition: str,
        keys: Sequence[str] = (),
        names: Sequence[str] | None = None,
        *,
        numbers: Sequence[int] | np.ndarray | None = None,
        tags: bool = False,
        writable: bool = False,
    ) -> Found:
        """Rows by name. names: of columns, those that some row lacks are left out; None: all that every row has. `names=()`: no bytes move.

        Arrays may be read-only views of the shard's memory (see `Transfer.read`); `writable` copies. Raises ValueError (no keys), KeysChanged,
        QueueError (`shard_lost`: bytes of a cell went with their shard), QueueTimeout, QueueGone.
        """
        fields = named(keys, numbers) | {"partition": name_of("partition", partition)}
        wanted = None if names is None else names_of("column", names)
        for _ in range(LOOKS):
            request = m.KeyedLook(member="", incarnation=0, names=wanted, tags=tags, **fields)
            looked: m.OkLooked = self.call(request, self.timeout_s)
            try:
                return self._found(looked, fields["keys"], writable)
            except Gone:  # overwritten or cleared since we looked: the controller knows what is there now
                continue
        raise KeysChanged(partition, fields["keys"] or [str(number) for number in m.unpacked(fields["numbers"])], LOOKS)

    def list_keys(self, partitions: Sequence[str] | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """Partition → key → tag ({}: none), keys in the order in which they were made. None: of all; what does not exist is left out."""
        request = m.KeyedList(member="", incarnation=0, partitions=None if partitions is None else names_of("partition", partitions))
        reply: m.OkListed = self.call(request, self.timeout_s)
        return {name: dict(zip(found.keys, _unpacked_tags(found.tags), strict=True)) for name, found in reply.partitions.items()}

    def clear(self, partition: str, keys: Sequence[str] = (), *, numbers: Sequence[int] | np.ndarray | None = None) -> int:
        """These rows go, with everything; returns how many were there."""
        fields = named(keys, numbers) | {"partition": name_of("partition", partition)}
        reply: m.OkCleared = self.call(m.KeyedClear(member="", incarnation=0, **fields), self.timeout_s)
        return reply.cleared

    def take(
        self, partition: str, task: str, limit: int, names: Sequence[str] = (), *, at_least: int = 1, wait_s: float = 30.0
    ) -> m.OkKeyedTaken:
        """Keys and numbers of the next rows that have these columns and that `task` has not had; waits for `at_least` of them, else gives none. They
        are not given again, whatever becomes of the taker. What comes after a QueueTimeout is given by the next take of this client that asks for
        the same; rows that were cleared meanwhile are among it."""
        request = m.KeyedTake(
            partition=name_of("partition", partition),
            member="",
            incarnation=0,
            task=name_of("task", task),
            limit=limit,
            names=names_of("column", names),
            at_least=at_least,
            wait_s=wait_s,
        )
        self._step(0.0, ())  # what came late may lie there
        kept = self._kept.get(_asked(request))
        if not kept or not 1 <= at_least <= limit:  # the controller says what is wrong
            taken: m.OkKeyedTaken = self.call(request, wait_s + self.timeout_s)
            return taken
        done = False
        if len(kept) < at_least:
            rest = replace(request, limit=limit - len(kept), at_least=at_least - len(kept))
            taken = self.call(rest, wait_s + self.timeout_s)
            kept.add(taken)
            done = taken.done
        enough = len(kept) >= at_least
        keys, numbers = kept.first(limit) if enough else ([], b"")
        if not kept:
            del self._kept[_asked(request)]
        return m.OkKeyedTaken(partition=request.partition, task=request.task, keys=keys, numbers=numbers, done=done)

    def keep(self, taken: m.OkKeyedTaken, names: Sequence[str]) -> None:
        """Rows of a take that came to nobody: the next take of this client that asks for the same gets them."""
        if taken.keys:
            self._kept.setdefault((taken.partition, taken.task, frozenset(names)), Kept()).add(taken)

    def end_task(self, partition: str, task: str) -> None:
        """What `task` has had is forgotten, and what came late to this client: a take under its name begins anew. A partition has at most 64."""
        ends = name_of("partition", partition), name_of("task", task)
        self.call(m.KeyedEndTask(partition=ends[0], member="", incarnation=0, task=ends[1]), self.timeout_s)
        for asked in [asked for asked in self._kept if asked[:2] == (partition, task)]:
            del self._kept[asked]

    def gave_up(self, request: m.Request, pending: Pending[Any]) -> None:
        """A take goes on at the controller: it is to end now, and what it was given is kept."""
        super().gave_up(request, pending)
        if isinstance(request, m.KeyedTake):
            pending.late = lambda taken: self.keep(taken, request.names)
            pending.cancel()

    # ------------------------------------------------------------ inside

    @cached_property
    def _kept(self) -> dict[Asked, Kept]:
        return {}


    def _store(self, columns: dict[str, Typed], rows: int) -> dict[str, np.ndarray]:
        """Each row in a block of its own, so that it goes alone."""
        return self._write(Layout.even(rows, 1), {name: column.packed for name, column in columns.items()})

    def _holders(self) -> str:
        """Who has the room, for a sentence."""
        try:
            reply: m.OkStatus = self.call(m.Status(), self.timeout_s)
        except (QueueError, QueueTimeout, QueueGone) as error:  # it must not stand in place of the refusal that it explains
            return f"who holds the room is not known ({error}): clear keys that are not read any more, or give the shards more room"
        largest = sorted(reply.status.partitions, key=lambda partition: -partition.nbytes)[:HOLDERS]
        held = ", ".join(f"partition {each.name!r} holds {each.nbytes} bytes of {each.keys} keys" for each in largest) or "no partition holds any"
        return f"{held}: clear keys that are not read any more, or give the shards more room"

    def _found(self, looked: m.OkLooked, keys: list[str], writable: bool) -> Found:
        rows, numbers = m.unpacked(looked.found), m.unpacked(looked.numbers)
        pieces = [(name, kind, at, table) for name, cells in looked.columns.items() for kind, at, table in _by_type(cells)]
        read = self._read(
            {str(turn): numbers[at] for turn, (_, _, at, _) in enumerate(pieces)},
            {str(turn): table for turn, (*_, table) in enumerate(pieces)},
            _spec([kind for _, kind, _, _ in pieces]),
            writable,
        )
        parts: dict[str, list[Part]] = {name: [] for name in looked.columns}
        for turn, (name, kind, at, _) in enumerate(pieces):
            parts[name].append(Part(kind, at, read[str(turn)]))
        found = looked.keys or [keys[row] for row in rows.tolist()]
        return Found(rows, found, numbers, _unpacked_tags(looked.tags), looked.names, parts)


def _asked(request: m.KeyedTake) -> Asked:
    return request.partition, request.task, frozenset(request.names)


def _by_type(cells: m.Cells) -> Iterator[tuple[m.CellType, np.ndarray, np.ndarray]]:
    """(type, which rows [n], their places [n, 4])."""
    table = m.places(cells.places)
    if not cells.which:
        yield cells.types[0], np.arange(len(table)), table
        return
    which = m.unpacked(cells.which)
    for number, kind in enumerate(cells.types):
        rows = np.flatnonzero(which == number)
        yield kind, rows, table[rows]


def _spec(types: Sequence[m.CellType]) -> m.TopicSpec:
    """Says what the columns "0", "1", … of a read are."""
    columns = tuple(m.Column(str(turn), kind.dtype, kind.kind, "", shape=kind.shape) for turn, kind in enumerate(types))
    return m.TopicSpec(name="keyed", model="", columns=columns, consumers=(), window=m.Window(batch=1, staleness=None))


def _packed_tags(tags: Sequence[Tag | None] | None, rows: int) -> list[bytes]:
    """b"" for None. Raises ValueError or TypeError for what is no tag."""
    if tags is None:
        return []
    if len(tags) != rows or not all(tag is None or isinstance(tag, dict) for tag in tags):
        raise ValueError(f"{len(tags)} tags for {rows} keys: a tag a key, each a dict or None; nothing was written")
    packed = pack_objects("tags", [{} if tag is None else tag for tag in tags])
    encoded = unpack_blobs(packed.values, packed.offsets)
    return [b"" if tag is None else data for tag, data in zip(tags, encoded, strict=True)]


def _unpacked_tags(tags: Sequence[bytes]) -> list[dict[str, Any]]:
    joined = np.frombuffer(b"".join(tags), dtype=np.uint8)
    return [{} if tag is None else tag for tag in unpack_objects("tags", joined, offsets_of([len(tag) for tag in tags]))]
