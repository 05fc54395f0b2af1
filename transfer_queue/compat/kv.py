"""Rows by key: put, get, list, clear, each in one request, and the same for coroutines.

Partition, key and column appear with their first put. Cells are overwritten freely; tags are merged in the queue, so two writers lose nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from transfer_queue.compat.calls import Call, later, now
from transfer_queue.compat.kv_meta import KVBatchMeta
from transfer_queue.compat.naming import KEYLESS, checked_keys, checked_tags
from transfer_queue.compat.tensors import Parser, TensorDict, packed_columns, rows_of, single, table
from transfer_queue.keyed import Found, Put

logger = logging.getLogger(__name__)
Tag = Mapping[str, Any]
Listed = dict[str, dict[str, Any]]


def kv_put(
    key: str,
    partition_id: str,
    fields: TensorDict | dict[str, Any] | None = None,
    tag: Tag | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """One row. fields: a dict of values without a batch axis, or a TensorDict with batch_size [1]. Else as `kv_batch_put`."""
    return now(_put_one(key, partition_id, fields, tag, data_parser))


async def async_kv_put(
    key: str,
    partition_id: str,
    fields: TensorDict | dict[str, Any] | None = None,
    tag: Tag | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """`kv_put` for a coroutine."""
    return await later(_put_one(key, partition_id, fields, tag, data_parser))


def kv_batch_put(
    keys: list[str],
    partition_id: str,
    fields: TensorDict | None = None,
    tags: Sequence[Tag] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """Write a row a key, whole or not at all. The meta has the merged tags and all columns that all these keys have now, sorted.

    fields: a TensorDict of batch_size [len(keys)]. data_parser: changes the columns before they are stored, see `tensors.parsed`; it runs here.
    Raises ValueError or TypeError (keys, tags, fields; nothing was written), and what `KeyedClient.put` raises.
    """
    return now(_put(keys, partition_id, fields, tags, data_parser))


async def async_kv_batch_put(
    keys: list[str],
    partition_id: str,
    fields: TensorDict | None = None,
    tags: Sequence[Tag] | None = None,
    data_parser: Parser | None = None,
) -> KVBatchMeta:
    """`kv_batch_put` for a coroutine."""
    return await later(_put(keys, partition_id, fields, tags, data_parser))


def kv_batch_get(keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None) -> TensorDict:
    """Rows in the order of `keys`, in memory of their own; those that are not there are left out with a warning.

    select_fields: those of them that all rows have; None: all that all rows have. None left: a TensorDict without rows.
    Raises ValueError where no key is there, or all have tags only; StorageKeyNotFoundError for rows that change again and again meanwhile.
    """
    return now(_get(keys, partition_id, select_fields))


async def async_kv_batch_get(keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None) -> TensorDict:
    """`kv_batch_get` for a coroutine."""
    return await later(_get(keys, partition_id, select_fields))


def kv_batch_get_by_meta(meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> TensorDict:
    """`kv_batch_get` of its keys and fields. Raises ValueError for a meta without partition, and for a field that it does not name."""
    return now(_get_by_meta(meta, select_fields))


async def async_kv_batch_get_by_meta(meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> TensorDict:
    """`kv_batch_get_by_meta` for a coroutine."""
    return await later(_get_by_meta(meta, select_fields))


def kv_list(partition_id: str | None = None) -> Listed:
    """Partition → key → tag, keys in the order in which they were made. A partition that does not exist is left out; None: all."""
    return now(listing(partition_id))


async def async_kv_list(partition_id: str | None = None) -> Listed:
    """`kv_list` for a coroutine."""
    return await later(listing(partition_id))


def kv_clear(keys: list[str] | str, partition_id: str) -> None:
    """These rows go, with everything; keys that are not there are no error. Raises ValueError for no keys, TypeError for what is none."""
    return now(_clear(keys, partition_id))


async def async_kv_clear(keys: list[str] | str, partition_id: str) -> None:
    """`kv_clear` for a coroutine."""
    return await later(_clear(keys, partition_id))


# ------------------------------------------------------------ the calls


def _put_one(key: str, partition: str, fields: Any, tag: Tag | None, parser: Parser | None) -> Call[Put, KVBatchMeta]:
    if fields is not None and not isinstance(fields, TensorDict | dict):
        raise ValueError(f"fields is a {type(fields).__name__}: pass a dict of values or a TensorDict of one row; nothing was written")
    return _put([key], partition, single(fields) if isinstance(fields, dict) else fields, None if tag is None else [tag], parser)


def _put(
    keys: list[str], partition: str, fields: TensorDict | None, tags: Sequence[Tag] | None, parser: Parser | None
) -> Call[Put, KVBatchMeta]:
    if fields is None and tags is None:
        raise ValueError("neither fields nor tags: nothing to write; pass one of them")
    named = checked_keys(keys)
    if len(set(named)) != len(named):
        raise ValueError(f"keys={named[:8]}… has a key twice: which of its rows counts, nobody can say; nothing was written. Put each once")
    if fields is not None and rows_of(fields) != len(named):
        raise ValueError(f"fields has {rows_of(fields)} rows for {len(named)} keys: they would land on other rows; nothing was written")
    checked_tags(tags, len(named))
    columns = {} if fields is None else packed_columns(fields, parser)

    def answer(put: Put) -> KVBatchMeta:
        meta = KVBatchMeta(keys=named, tags=[{}] * len(named), partition_id=partition, fields=put.names)
        meta.tags = put.tags  # nobody else has them: no copy
        return meta

    return Call(lambda client: client.put(partition, named, columns, tags), answer)


def _get(keys: list[str] | str, partition: str, select: list[str] | str | None) -> Call[Found, TensorDict]:
    named = checked_keys(keys)
    names = None if select is None else list(dict.fromkeys([select] if isinstance(select, str) else select))

    def answer(found: Found) -> TensorDict:
        if not len(found):
            raise ValueError(f"partition {partition!r} has none of the keys {named[:8]}: put them first, or look with kv_list what is there")
        if len(found) < len(named):
            gone = sorted(set(named).difference(found.keys))
            logger.warning("partition %r has no keys %s: they are left out", partition, gone[:8])
        if not found.names:
            raise ValueError(f"keys {named[:8]} of partition {partition!r} have no column in common: they have tags only, or are not ready")
        if not found.parts:
            logger.warning("keys of partition %r have none of the columns %s: no rows are returned", partition, names)
            return TensorDict({}, batch_size=[0])
        return table(found)

    return Call(lambda client: client.get(partition, named, names, writable=True), answer)


def _get_by_meta(meta: KVBatchMeta, select: list[str] | str | None) -> Call[Found, TensorDict]:
    if meta.partition_id is None:
        raise ValueError("the meta names no partition_id: whose keys these are, nobody can say; set it")
    names = [select] if isinstance(select, str) else select
    if names is not None and (meta.fields is None or not set(names) <= set(meta.fields)):
        raise ValueError(f"select_fields={names} are not all among the meta's fields {meta.fields}: select among those, or get by keys")
    return _get(meta.keys, meta.partition_id, meta.fields if names is None else names)


def listing(partition: str | None) -> Call[Listed, Listed]:
    """Rows that were put without a key are not listed."""

    def answer(found: Listed) -> Listed:
        return {name: {key: tag for key, tag in keys.items() if not key.startswith(KEYLESS)} for name, keys in found.items()}

    return Call(lambda client: client.list_keys(None if partition is None else [partition]), answer)


def _clear(keys: list[str] | str, partition: str) -> Call[int, None]:
    named = checked_keys(keys)
    return Call(lambda client: client.clear(partition, named), lambda cleared: None)
