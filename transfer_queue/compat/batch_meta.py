"""What a program holds of rows that it names by number: the queue's own numbers, never given twice, so that what is put by a meta of rows that were
cleared meanwhile is written nowhere. No places: columns may be overwritten between a look and a read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from transfer_queue.compat.copies import copied
from transfer_queue.compat.extra_info import merged
from transfer_queue.compat.kv_meta import split

Schema = dict[str, dict[str, Any]]
_STATE = ("global_indexes", "partition_ids", "field_schema", "production_status", "extra_info", "custom_meta", "_custom_backend_meta", "_fresh")


class Sample:
    """One row of a batch, for reading."""

    __slots__ = ("_batch", "_row")

    def __init__(self, batch: BatchMeta, row: int) -> None:
        self._batch, self._row = batch, row

    @property
    def global_index(self) -> int:
        return self._batch.global_indexes[self._row]

    @property
    def partition_id(self) -> str:
        return self._batch.partition_ids[self._row]

    @property
    def production_status(self) -> int:
        return int(self._batch.production_status[self._row])

    @property
    def custom_meta(self) -> Mapping[str, Any]:
        return MappingProxyType(self._batch.custom_meta[self._row])

    @property
    def fields(self) -> Mapping[str, Mapping[str, Any]]:
        """Column → what is known of it; `shape` is this row's."""
        found = {}
        for name, schema in self._batch.field_schema.items():
            own = {key: value for key, value in schema.items() if key != "per_sample_shapes"}
            if schema.get("per_sample_shapes") is not None:
                own["shape"] = schema["per_sample_shapes"][self._row]
            found[name] = MappingProxyType(own)
        return MappingProxyType(found)


class Samples:
    """The rows of a batch one by one."""

    __slots__ = ("_batch",)

    def __init__(self, batch: BatchMeta) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    def __getitem__(self, row: int) -> Sample:
        return Sample(self._batch, range(len(self))[row])

    def __iter__(self) -> Iterator[Sample]:
        return (Sample(self._batch, row) for row in range(len(self)))


class BatchMeta:
    """R rows, each with number, partition and tag (`custom_meta`), and the columns that all of them have.

    field_schema: column → {"dtype", "shape", "is_nested", "is_non_tensor", "per_sample_shapes"}; of rows that were looked up by key the names are
    known and nothing else. production_status [R] int8: 1 for a row that has its columns. `BatchMeta()` is the empty batch.
    Raises ValueError where lengths differ.
    """

    __slots__ = _STATE

    def __init__(
        self,
        global_indexes: Sequence[int] = (),
        partition_ids: Sequence[str] = (),
        field_schema: Mapping[str, Mapping[str, Any]] | None = None,
        production_status: np.ndarray | Sequence[int] | None = None,
        extra_info: Mapping[str, Any] | None = None,
        custom_meta: Sequence[Mapping[str, Any]] | None = None,
        _custom_backend_meta: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        rows = len(global_indexes)
        status = np.zeros(rows, dtype=np.int8) if production_status is None else np.array(production_status, dtype=np.int8)
        shapes = {f"per_sample_shapes of {name!r}": schema.get("per_sample_shapes") for name, schema in (field_schema or {}).items()}
        given = {"partition_ids": partition_ids, "production_status": status, "custom_meta": custom_meta or None} | shapes
        given["_custom_backend_meta"] = _custom_backend_meta or None
        for name, values in given.items():
            if values is not None and len(values) != rows:
                raise ValueError(f"{len(values)} {name} for {rows} global_indexes: give each row one")
        self.global_indexes: list[int] = list(global_indexes)
        self.partition_ids: list[str] = list(partition_ids)
        self.field_schema: Schema = {name: dict(schema) for name, schema in (field_schema or {}).items()}
        self.production_status: np.ndarray = status
        self.extra_info: dict[str, Any] = dict(extra_info or {})
        self.custom_meta: list[dict[str, Any]] = [dict(meta) for meta in custom_meta] if custom_meta else [{} for _ in range(rows)]
        self._custom_backend_meta = [dict(meta) for meta in _custom_backend_meta] if _custom_backend_meta else [{} for _ in range(rows)]
        self._fresh: list[dict[str, Any]] | None = None  # what `update_custom_meta` said since the last put: only that is to be written

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _STATE)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(_STATE, state, strict=True):
            setattr(self, name, value)
        if not self.production_status.flags.writeable:  # Ray maps arrays read-only
            self.production_status = self.production_status.copy()

    def __len__(self) -> int:
        return len(self.global_indexes)

    def __str__(self) -> str:
        return (
            f"BatchMeta(size={self.size}, field_names={self.field_names}, is_ready={self.is_ready}, global_indexes={self.global_indexes}, "
            f"extra_info={self.extra_info})"
        )

    def __getitem__(self, item: int | slice) -> BatchMeta:
        """A batch of one row, or of a slice. Raises IndexError, or TypeError for another index."""
        rows = range(len(self))
        if isinstance(item, slice):
            return self._part(list(rows[item]))
        if isinstance(item, int | np.integer):
            return self._part([rows[int(item)]])
        raise TypeError(f"a batch is indexed by int or slice, got {type(item).__name__}: use select_samples for a list")

    # ------------------------------------------------------------ what it is

    @property
    def size(self) -> int:
        return len(self.global_indexes)

    @property
    def field_names(self) -> list[str]:
        """Sorted."""
        return sorted(self.field_schema)

    @property
    def samples(self) -> Samples:
        return Samples(self)

    @property
    def is_ready(self) -> bool:
        """There are rows, and each has its columns."""
        return self.size > 0 and bool((self.production_status == 1).all())

    def get_dtypes(self, field_name: str) -> list[Any]:
        """One a row. Raises KeyError for a column that is not here."""
        return [self._schema(field_name).get("dtype")] * self.size

    def get_shapes(self, field_name: str) -> list[Any]:
        """One a row. Raises KeyError for a column that is not here."""
        schema = self._schema(field_name)
        shapes = schema.get("per_sample_shapes")
        return list(shapes) if shapes is not None else [schema.get("shape")] * self.size

    def _schema(self, name: str) -> dict[str, Any]:
        if name not in self.field_schema:
            raise KeyError(f"column {name!r} is not among {self.field_names}: look its rows up again after its put")
        return self.field_schema[name]

    # ------------------------------------------------------------ what the batch carries

    def get_extra_info(self, key: str, default: Any = None) -> Any:
        return self.extra_info.get(key, default)

    def set_extra_info(self, key: str, value: Any) -> None:
        self.extra_info[key] = value

    def get_all_extra_info(self) -> dict[str, Any]:
        """A deep copy."""
        return copy.deepcopy(self.extra_info)

    def update_extra_info(self, info_dict: Mapping[str, Any]) -> None:
        self.extra_info.update(info_dict)

    def remove_extra_info(self, key: str) -> Any:
        """Its value; None: it was not there."""
        return self.extra_info.pop(key, None)

    def clear_extra_info(self) -> None:
        self.extra_info.clear()

    def has_extra_info(self, key: str) -> bool:
        return key in self.extra_info

    # ------------------------------------------------------------ tags of its rows

    def get_all_custom_meta(self) -> list[dict[str, Any]]:
        """A deep copy."""
        return [copied(tag) for tag in self.custom_meta]

    def update_custom_meta(self, custom_meta: Sequence[Mapping[str, Any]] | None) -> None:
        """Merge a tag into each row's; the next put by this batch writes what was merged. Raises ValueError unless each row has one."""
        if custom_meta is None:
            return
        if len(custom_meta) != self.size:
            raise ValueError(f"{len(custom_meta)} tags for {self.size} rows: give each row one, {{}} for none")
        if self._fresh is None:
            self._fresh = [{} for _ in range(self.size)]
        for mine, fresh, tag in zip(self.custom_meta, self._fresh, custom_meta, strict=True):
            mine.update(tag)
            fresh.update(tag)

    def clear_custom_meta(self) -> None:
        """Here, not in the queue, where entries of a tag are merged and never taken away."""
        self.custom_meta = [{} for _ in range(self.size)]
        self._fresh = None

    # ------------------------------------------------------------ columns

    def add_fields(self, tensor_dict: Any, set_all_ready: bool = True) -> BatchMeta:
        """These columns are there too, in place. tensor_dict: a TensorDict of R rows; one without rows changes nothing. Raises ValueError."""
        from transfer_queue.compat.described import described

        rows = tensor_dict.batch_size[0]
        if not rows:
            return self
        if rows != self.size:
            raise ValueError(f"{rows} rows of columns for a batch of {self.size}: they would belong to other rows; give each row one")
        self.field_schema.update(described(tensor_dict))
        if set_all_ready:
            self.production_status[:] = 1
        return self

    def select_fields(self, field_names: Sequence[str]) -> BatchMeta:
        """All rows with those of these columns that they have; others are left out without a word."""
        found = self._part(range(self.size))
        found.field_schema = {name: found.field_schema[name] for name in field_names if name in found.field_schema}
        return found

    # ------------------------------------------------------------ rows

    def select_samples(self, sample_indices: Sequence[int]) -> BatchMeta:
        """These rows, by their places in this batch. Raises ValueError for a place that is not here."""
        if wrong := [at for at in sample_indices if not 0 <= at < self.size]:
            raise ValueError(f"sample_indices {wrong[:8]} are no places of a batch of {self.size}: 0 to {self.size - 1}")
        return self._part(sample_indices)

    def copy(self) -> BatchMeta:
        """A deep copy."""
        return self._part(range(self.size))

    def chunk(self, chunks: int) -> list[BatchMeta]:
        """So many parts, in order, the first ones longer by a row where it does not come out even; more parts than rows: the last ones are empty."""
        return [self._part(places) for places in split(self.size, chunks)]

    def chunk_by_partition(self) -> list[BatchMeta]:
        """A part for each partition."""
        return [self._part(places) for places in self.by_partition().values()]

    def by_partition(self) -> dict[str, list[int]]:
        """Partition → places of its rows in this batch."""
        found: dict[str, list[int]] = {}
        for at, partition in enumerate(self.partition_ids):
            found.setdefault(partition, []).append(at)
        return found

    def reorder(self, indices: Sequence[int]) -> None:
        """In place: row i becomes what row `indices[i]` was. Raises ValueError unless each row is named once."""
        if sorted(indices) != list(range(self.size)):
            raise ValueError(f"indices={list(indices)[:8]}… do not name each of {self.size} rows once: rows would be lost or doubled")
        other = self._part(indices)
        for name in _STATE:
            setattr(self, name, getattr(other, name))

    def union(self, other: BatchMeta | None) -> BatchMeta:
        """The same rows with the columns and tags of both; what both have is the other's. Raises ValueError where the rows are not the same."""
        if other is None or not other.size:
            return self.copy()
        if not self.size:
            return other.copy()
        if self.global_indexes != other.global_indexes or self.partition_ids != other.partition_ids:
            raise ValueError(f"rows {self.global_indexes[:8]}… and {other.global_indexes[:8]}… are not the same: select and order them alike before")
        found, more = self.copy(), other.copy()
        found.field_schema |= more.field_schema
        found.production_status &= more.production_status
        found.extra_info |= more.extra_info
        for mine, theirs in zip(found.custom_meta, more.custom_meta, strict=True):
            mine.update(theirs)
        for mine, theirs in zip(found._custom_backend_meta, more._custom_backend_meta, strict=True):
            mine.update(theirs)
        if more._fresh is not None:
            found._fresh = [mine | theirs for mine, theirs in zip(found._fresh or [{}] * self.size, more._fresh, strict=True)]
        return found

    @classmethod
    def concat(cls, data: Sequence[BatchMeta], validate: bool = True) -> BatchMeta:
        """One after the other; those without rows count for nothing. Raises ValueError where columns, their dtypes or an extra_info differ."""
        parts = [part for part in data if part is not None and part.size]
        if not parts:
            return cls()
        first = parts[0]
        for part in parts if validate else ():
            if part.field_names != first.field_names:
                raise ValueError(f"columns {first.field_names} and {part.field_names}: a batch has the same for all; select those that they share")
            for name in first.field_names:
                one, other = first.field_schema[name].get("dtype"), part.field_schema[name].get("dtype")
                if one != other:
                    raise ValueError(f"column {name!r} is {one} and {other}: a batch has one dtype a column; leave it out or convert it")
        found = cls(
            [number for part in parts for number in part.global_indexes],
            [partition for part in parts for partition in part.partition_ids],
            {name: _schema_of_all(name, parts) for name in first.field_schema},
            np.concatenate([part.production_status for part in parts]),
            merged([part.extra_info for part in parts]),
            [tag for part in parts for tag in part.custom_meta],
            [meta for part in parts for meta in part._custom_backend_meta],
        )
        if any(part._fresh is not None for part in parts):
            found._fresh = [copied(tag) for part in parts for tag in part._fresh or [{}] * part.size]  # a dict for each row: it is written into
        return found

    @classmethod
    def empty(cls, extra_info: Mapping[str, Any] | None = None) -> BatchMeta:
        return cls(extra_info=extra_info)

    def _part(self, places: Sequence[int]) -> BatchMeta:
        """Deep copies, so that who changes a part changes no other."""
        chosen = list(places)
        found = BatchMeta(
            [self.global_indexes[at] for at in chosen],
            [self.partition_ids[at] for at in chosen],
            {name: _schema_part(schema, chosen) for name, schema in self.field_schema.items()},
            self.production_status[chosen],
            copy.deepcopy(self.extra_info),
            [copied(self.custom_meta[at]) for at in chosen],
            [copied(self._custom_backend_meta[at]) for at in chosen],
        )
        if self._fresh is not None:
            found._fresh = [copied(self._fresh[at]) for at in chosen]
        return found


def _schema_part(schema: Mapping[str, Any], places: Sequence[int]) -> dict[str, Any]:
    found = dict(schema)
    if found.get("per_sample_shapes") is not None:
        found["per_sample_shapes"] = [found["per_sample_shapes"][at] for at in places]
    return found


def _schema_of_all(name: str, parts: Sequence[BatchMeta]) -> dict[str, Any]:
    """Of one column; where a part is nested, all of it is."""
    schemas = [part.field_schema.get(name, {}) for part in parts]
    nested = any(schema.get("is_nested") or schema.get("per_sample_shapes") for schema in schemas)
    found = {key: schemas[0].get(key) for key in ("dtype", "shape", "is_nested", "is_non_tensor")}
    if nested:
        found |= {"shape": None, "is_nested": True, "per_sample_shapes": [shape for part in parts for shape in part.get_shapes(name)]}
    return found
