"""Rows by batch: what a look at keys gave is read and written again without naming keys. Coroutines, each with a sync twin; any thread, any loop."""

from __future__ import annotations

import itertools
import logging
import os
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from transfer_queue.compat.batch_meta import BatchMeta
from transfer_queue.compat.calls import Call, later, now
from transfer_queue.compat.errors import StorageKeyNotFoundError
from transfer_queue.compat.kv import Listed, listing
from transfer_queue.compat.naming import KEYLESS, checked_keys, checked_numbers
from transfer_queue.compat.taking import UNKNOWN, Taking
from transfer_queue.compat.taking import WAIT_S as TAKE_S
from transfer_queue.compat.tensors import Parser, TensorDict, joined_tables, packed_columns, rows_of, table
from transfer_queue.keyed import Found, KeyedClient, Put

logger = logging.getLogger(__name__)


class TransferQueueClient:
    """What `get_client()` gives. All of a process share the connection of `init()`; `close()` of the package ends it."""

    def __init__(self, client_id: str | None = None) -> None:
        self.client_id = client_id or f"TransferQueueClient_{os.getpid()}"

    # ------------------------------------------------------------ coroutines

    async def async_kv_retrieve_meta(self, keys: list[str] | str, partition_id: str, create: bool = False) -> BatchMeta:
        """The rows of these keys, in their order, with tags and the columns that all of them have; keys that are not there are left out, or made
        (`create`). Raises TypeError or ValueError for what names no keys."""
        return await later(_retrieve_meta(keys, partition_id, create))

    async def async_get_meta(
        self,
        data_fields: list[str],
        batch_size: int,
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: dict[str, Any] | None = None,
    ) -> BatchMeta:
        """The next `batch_size` rows, in the order in which they were made, that have these columns and that the task has not had; they count as had
        at once. Waits for them, else QueueTimeout. sampling_config: not looked at, as by TransferQueue's default sampler."""
        taking = Taking(data_fields, batch_size, partition_id, mode, task_name, TAKE_S)
        while (meta := await later(taking.turn())) is None:
            if taking.over():
                raise taking.late()
        return meta

    async def async_kv_retrieve_keys(self, global_indexes: list[int] | int, partition_id: str) -> list[str]:
        """Raises RuntimeError where a row is not there any more, TypeError or ValueError for what is no number."""
        return await later(_retrieve_keys(global_indexes, partition_id))

    async def async_kv_list(self, partition_id: str | None = None) -> Listed:
        """As `kv_list`."""
        return await later(listing(partition_id))

    async def async_get_data(self, metadata: BatchMeta) -> TensorDict:
        """Its columns of its rows, in their order, in memory of their own; a batch without rows or columns gives a TensorDict without rows.

        Raises StorageKeyNotFoundError where a row was cleared meanwhile, or lacks a column.
        """
        return await later(_get_data(metadata))

    async def async_put(
        self,
        data: TensorDict,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Parser | None = None,
    ) -> BatchMeta:
        """Write columns of these rows, and what `update_custom_meta` added to their tags; `metadata` itself, with the columns, is returned. Rows that
        were cleared meanwhile are written nowhere, with a warning. Without metadata, rows are made that have no key.

        Raises ValueError or TypeError (nothing was written), and what `KeyedClient.put` raises.
        """
        return await later(_put(data, metadata, partition_id, data_parser))

    async def async_set_custom_meta(self, metadata: BatchMeta) -> None:
        """Merge its tags into those of its rows."""
        return await later(_set_custom_meta(metadata))

    async def async_clear_samples(self, metadata: BatchMeta) -> None:
        """Its rows go, with everything."""
        return await later(_clear_samples(metadata))

    async def async_clear_partition(self, partition_id: str) -> None:
        """All its rows go."""
        return await later(_clear_partition(partition_id))

    async def async_get_partition_list(self) -> list[str]:
        """Those that have rows."""
        return await later(_partition_list())

    # ------------------------------------------------------------ their sync twins

    def kv_retrieve_meta(self, keys: list[str] | str, partition_id: str, create: bool = False) -> BatchMeta:
        """`async_kv_retrieve_meta`, waited for."""
        return now(_retrieve_meta(keys, partition_id, create))

    def get_meta(
        self,
        data_fields: list[str],
        batch_size: int,
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: dict[str, Any] | None = None,
    ) -> BatchMeta:
        """`async_get_meta`, waited for."""
        taking = Taking(data_fields, batch_size, partition_id, mode, task_name, TAKE_S)
        while (meta := now(taking.turn())) is None:
            if taking.over():
                raise taking.late()
        return meta

    def taken(self, data_fields: list[str], batch_size: int, partition_id: str, task_name: str, wait_s: float) -> BatchMeta | None:
        """`get_meta`; None where there are too few rows for `wait_s`."""
        taking = Taking(data_fields, batch_size, partition_id, "fetch", task_name, wait_s)
        while (meta := now(taking.turn())) is None and not taking.over():
            pass
        return meta

    def kv_retrieve_keys(self, global_indexes: list[int] | int, partition_id: str) -> list[str]:
        """`async_kv_retrieve_keys`, waited for."""
        return now(_retrieve_keys(global_indexes, partition_id))

    def kv_list(self, partition_id: str | None = None) -> Listed:
        """`async_kv_list`, waited for."""
        return now(listing(partition_id))

    def get_data(self, metadata: BatchMeta) -> TensorDict:
        """`async_get_data`, waited for."""
        return now(_get_data(metadata))

    def put(
        self,
        data: TensorDict,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Parser | None = None,
    ) -> BatchMeta:
        """`async_put`, waited for."""
        return now(_put(data, metadata, partition_id, data_parser))

    def set_custom_meta(self, metadata: BatchMeta) -> None:
        """`async_set_custom_meta`, waited for."""
        return now(_set_custom_meta(metadata))

    def clear_samples(self, metadata: BatchMeta) -> None:
        """`async_clear_samples`, waited for."""
        return now(_clear_samples(metadata))

    def clear_partition(self, partition_id: str) -> None:
        """`async_clear_partition`, waited for."""
        return now(_clear_partition(partition_id))

    def get_partition_list(self) -> list[str]:
        """`async_get_partition_list`, waited for."""
        return now(_partition_list())


# ------------------------------------------------------------ the calls


def _retrieve_meta(keys: list[str] | str, partition: str, create: bool) -> Call[Any, BatchMeta]:
    named = checked_keys(keys)

    def ask(client: KeyedClient) -> Found:
        if create:
            client.put(partition, list(dict.fromkeys(named)))
        return client.get(partition, named, names=(), tags=True)

    def answer(found: Found) -> BatchMeta:
        if len(found) < len(named):
            logger.warning("partition %r has no keys %s: they are left out", partition, sorted(set(named).difference(found.keys))[:8])
        ready = np.full(len(found), bool(found.names), dtype=np.int8)
        schema = dict.fromkeys(found.names, UNKNOWN)
        return BatchMeta(found.numbers.tolist(), [partition] * len(found), schema, ready, custom_meta=found.tags)

    return Call(ask, answer)


def _retrieve_keys(numbers: list[int] | int, partition: str) -> Call[Found, list[str]]:
    asked = checked_numbers(numbers)

    def answer(found: Found) -> list[str]:
        if len(found) < len(asked):
            gone = sorted(set(asked).difference(found.numbers.tolist()))
            raise RuntimeError(f"rows {gone[:8]} are not in partition {partition!r} any more, or never were: look their keys up again")
        return found.keys

    return Call(lambda client: client.get(partition, numbers=asked, names=()), answer)


def _get_data(metadata: BatchMeta) -> Call[Any, TensorDict]:
    if metadata is None or not metadata.size or not metadata.field_names:
        logger.warning("a batch without rows or columns is read: no rows are returned")
        return Call(lambda client: None, lambda reply: TensorDict({}, batch_size=[0]))
    names, parts = metadata.field_names, metadata.by_partition()
    asked = {partition: [metadata.global_indexes[at] for at in places] for partition, places in parts.items()}

    def ask(client: KeyedClient) -> dict[str, Found]:
        return {partition: client.get(partition, numbers=numbers, names=names, writable=True) for partition, numbers in asked.items()}

    def answer(reply: dict[str, Found]) -> TensorDict:
        for partition, found in reply.items():
            _check_whole(found, partition, asked[partition], names)
        if len(parts) == 1:
            return table(next(iter(reply.values())))
        return joined_tables([(parts[partition], table(found)) for partition, found in reply.items()], metadata.size)

    return Call(ask, answer)


def _check_whole(found: Found, partition: str, numbers: Sequence[int], names: Sequence[str]) -> None:
    if len(found) < len(numbers):
        gone = sorted(set(numbers).difference(found.numbers.tolist()))
        raise StorageKeyNotFoundError(f"rows {gone[:8]} of partition {partition!r} were cleared since the batch was made: look their keys up again")
    if lacking := [name for name in names if name not in found.parts]:
        raise StorageKeyNotFoundError(f"columns {lacking[:8]} are not in all {len(numbers)} rows of partition {partition!r}: put or leave them")


def _put(data: TensorDict, metadata: BatchMeta | None, partition: str | None, parser: Parser | None) -> Call[Put, BatchMeta]:
    if metadata is None:
        return _insert(data, partition, parser)
    if not metadata.size:
        raise ValueError("metadata has no rows: nothing can be written by it; look keys up, or pass partition_id alone to make rows")
    rows, partitions = rows_of(data), set(metadata.partition_ids)
    if rows != metadata.size:
        raise ValueError(f"data has {rows} rows for a batch of {metadata.size}: they would land on other rows; nothing was written")
    if len(partitions) > 1:
        raise ValueError(f"metadata has rows of partitions {sorted(partitions)}: a put goes into one, whole; use metadata.chunk_by_partition()")
    columns, numbers, tags, owner = packed_columns(data, parser), list(metadata.global_indexes), metadata._fresh, metadata.partition_ids[0]

    def answer(put: Put) -> BatchMeta:
        if (put.numbers < 0).any():
            gone = np.asarray(numbers)[put.numbers < 0].tolist()
            logger.warning("rows %s of partition %r were cleared meanwhile: nothing was written for them", gone[:8], owner)
        metadata._fresh = None
        return metadata.add_fields(data)

    return Call(lambda client: client.put(owner, columns=columns, tags=tags, numbers=numbers), answer)


def _insert(data: TensorDict, partition: str | None, parser: Parser | None) -> Call[Put, BatchMeta]:
    """Rows without a key of the program's."""
    if partition is None:
        raise ValueError("neither metadata nor partition_id: where the rows belong, nobody can say; pass one of them")
    rows = rows_of(data)
    if not rows:
        raise ValueError("data has no rows: nothing to write")
    series = uuid.uuid4().hex
    keys, columns = [f"{KEYLESS}{series}_{at}" for at in range(rows)], packed_columns(data, parser)

    def answer(put: Put) -> BatchMeta:
        return BatchMeta(put.numbers.tolist(), [partition] * rows, custom_meta=put.tags).add_fields(data)

    return Call(lambda client: client.put(partition, keys, columns), answer)


def _set_custom_meta(metadata: BatchMeta) -> Call[Any, None]:
    parts = metadata.by_partition()

    def ask(client: KeyedClient) -> None:
        for partition, places in parts.items():
            client.put(partition, numbers=[metadata.global_indexes[at] for at in places], tags=[metadata.custom_meta[at] for at in places])

    def answer(reply: None) -> None:
        metadata._fresh = None

    return Call(ask, answer)


def _clear_samples(metadata: BatchMeta) -> Call[Any, None]:
    parts = metadata.by_partition()

    def ask(client: KeyedClient) -> None:
        for partition, places in parts.items():
            client.clear(partition, numbers=[metadata.global_indexes[at] for at in places])

    return Call(ask, lambda reply: None)


def _clear_partition(partition: str) -> Call[Any, None]:
    def ask(client: KeyedClient) -> None:
        keys = list(itertools.chain.from_iterable(client.list_keys([partition]).values()))
        if keys:
            client.clear(partition, keys)

    return Call(ask, lambda reply: None)


def _partition_list() -> Call[Any, list[str]]:
    return Call(lambda client: client.list_keys(), list)
