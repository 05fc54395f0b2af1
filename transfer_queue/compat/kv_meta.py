"""What a program holds of rows that it names by key: keys, tags, columns, and what it wants to pass on with the batch. No bytes, no places."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transfer_queue.compat.copies import copied
from transfer_queue.compat.extra_info import merged


@dataclass
class KVBatchMeta:
    """Rows of one partition. Everything may be read and assigned; `tags` and `extra_info` are deep copies of what was passed.

    Raises ValueError for as many tags as there are no keys, and for keys or fields that come twice.
    """

    keys: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)  # one a key
    partition_id: str | None = None
    fields: list[str] | None = None  # columns that all keys have; None: not known, all of them
    extra_info: dict[str, Any] | None = field(default_factory=dict)  # of the batch

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.tags):
            raise ValueError(f"{len(self.tags)} tags for {len(self.keys)} keys: give each key one, {{}} for none")
        _check_once("keys", self.keys)
        if self.fields is not None:
            _check_once("fields", self.fields)
        self.tags, self.extra_info = [copied(tag) for tag in self.tags], copy.deepcopy(self.extra_info)

    @property
    def size(self) -> int:
        return len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        return f"KVBatchMeta(size={self.size}, partition_id={self.partition_id!r}, fields={self.fields}, extra_info={self.extra_info})"

    def select_keys(self, keys_to_select: list[str]) -> KVBatchMeta:
        """These keys, in this order. Raises ValueError for one that comes twice, RuntimeError for one that is not here."""
        _check_once("keys", keys_to_select)
        at = {key: place for place, key in enumerate(self.keys)}
        if strange := [key for key in keys_to_select if key not in at]:
            raise RuntimeError(f"keys {strange[:8]} are not in this batch of {len(self)}: select among those it has")
        return self._part([at[key] for key in keys_to_select])

    def reorder(self, indexes: list[int]) -> None:
        """In place: row i becomes what row `indexes[i]` was. Raises ValueError unless each row is named once."""
        if sorted(indexes) != list(range(len(self))):
            raise ValueError(f"indexes={list(indexes)[:8]}… do not name each of {len(self)} rows once: rows would be lost or doubled")
        self.keys = [self.keys[at] for at in indexes]
        self.tags = [self.tags[at] for at in indexes]

    def chunk(self, chunks: int) -> list[KVBatchMeta]:
        """So many parts, in order, the first ones longer by a row where it does not come out even; more parts than rows: the last ones are empty."""
        return [self._part(places) for places in split(len(self), chunks)]

    @classmethod
    def concat(cls, data: Sequence[KVBatchMeta]) -> KVBatchMeta:
        """One after the other; those without rows count for nothing. Raises ValueError where partitions, fields or an extra_info differ, or a key
        comes twice."""
        parts = [part for part in data if part is not None and len(part)]
        if not parts:
            return cls()
        first = parts[0]
        for part in parts:
            if part.partition_id != first.partition_id:
                raise ValueError(f"partitions {first.partition_id!r} and {part.partition_id!r}: a batch has one; concatenate them apart")
            if part.fields is not None and set(part.fields) != set(first.fields or ()):
                raise ValueError(f"fields {first.fields} and {part.fields}: a batch has the same for all; select those that they share")
        return cls(
            keys=[key for part in parts for key in part.keys],
            tags=[tag for part in parts for tag in part.tags],
            partition_id=first.partition_id,
            fields=first.fields,
            extra_info=merged([part.extra_info or {} for part in parts]) or None,
        )

    def _part(self, places: Iterable[int]) -> KVBatchMeta:
        chosen = list(places)
        return KVBatchMeta([self.keys[at] for at in chosen], [self.tags[at] for at in chosen], self.partition_id, self.fields, self.extra_info)


def split(rows: int, chunks: int) -> list[range]:
    """0 … rows in so many runs of nearly one length, longer ones first. Raises ValueError for fewer than one."""
    if chunks < 1:
        raise ValueError(f"chunks={chunks}: at least 1")
    least, more = divmod(rows, chunks)
    starts = [number * least + min(number, more) for number in range(chunks + 1)]
    return [range(starts[number], starts[number + 1]) for number in range(chunks)]


def _check_once(what: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if list(names).count(name) > 1}, key=str)
        raise ValueError(f"{what} {twice[:8]} come twice: a row, and a column, is named once; leave the others out")
