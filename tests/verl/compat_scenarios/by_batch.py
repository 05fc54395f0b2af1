"""Batches by number, coroutines, loops and threads (meaning 8)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from told import KEYS, batch, kind, scenario, told


@scenario
def a_batch_is_read_and_written(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch(), tags=[{"s": 1}, {"s": 2}, {"s": 3}])
    client = tq.get_client()
    meta = client.kv_retrieve_meta(keys=[KEYS[2], KEYS[0]], partition_id=p, create=False)
    before = told(meta)
    data = client.get_data(meta.select_fields(["runs", "nobody"]))
    after = client.put(data=TensorDict({"logp": data["runs"].float()}, batch_size=[2]), metadata=meta)
    keys = client.kv_retrieve_keys(global_indexes=meta.global_indexes, partition_id=p)
    return [before, data, after, after is meta, keys, tq.kv_batch_get(KEYS[::2], p), tq.kv_batch_get(KEYS, p), tq.kv_list(p)]


@scenario
def coroutines_do_the_same(tq: Any, p: str) -> Any:
    async def work() -> Any:
        client = tq.get_client()
        first = await tq.async_kv_batch_put(keys=KEYS, partition_id=p, fields=batch(), tags=[{}, {"t": 1}, {}])
        await tq.async_kv_put(key=KEYS[0], partition_id=p, tag={"status": "finished"})
        meta = await client.async_kv_retrieve_meta(keys=KEYS, partition_id=p, create=False)
        read = await client.async_get_data(meta)
        written = await client.async_put(data=TensorDict({"v": torch.arange(3)}, batch_size=[3]), metadata=meta)
        keys = await client.async_kv_retrieve_keys(global_indexes=written.global_indexes, partition_id=p)
        both = await asyncio.gather(tq.async_kv_batch_get(KEYS, p, select_fields=["v"]), tq.async_kv_batch_get_by_meta(first, "runs"))
        listed = await tq.async_kv_list(p)
        await tq.async_kv_clear(KEYS[0], p)
        return [first, meta, read, written, keys, *both, listed, await tq.async_kv_list(p)]

    return asyncio.run(work())


@scenario
def loops_and_threads_share_a_client(tq: Any, p: str) -> Any:
    found: dict[str, Any] = {}

    def work(key: str) -> None:
        async def put() -> None:
            await tq.async_kv_put(key=key, partition_id=p, fields={"x": torch.tensor([len(key)])}, tag={"k": key})

        asyncio.run(put())
        found[key] = told(tq.kv_batch_get(key, p))

    threads = [threading.Thread(target=work, args=["k" * (at + 1)]) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [sorted(found.items()), sorted(tq.kv_list(p)[p].items())]


@scenario
def a_sync_call_inside_a_running_loop(tq: Any, p: str) -> Any:
    async def work() -> Any:
        tq.kv_put("a", p, fields={"x": torch.arange(2)})
        return tq.kv_batch_get("a", p)

    return asyncio.run(work())


@scenario
def batches_of_no_rows_or_columns(tq: Any, p: str) -> Any:
    client = tq.get_client()
    tq.kv_batch_put(["a"], p, tags=[{"s": 1}])
    bare = client.kv_retrieve_meta("a", p)
    return [
        bare,
        client.get_data(bare),
        client.get_data(tq.BatchMeta.empty()),
        client.kv_retrieve_meta(["nobody"], p),
        client.kv_retrieve_meta(["nobody"], p + " that is not there"),
        kind(lambda: client.put(data=batch(1), metadata=tq.BatchMeta.empty())),
        kind(lambda: client.put(data=batch(1))),
        client.kv_retrieve_meta(["new", "a"], p, create=True),
        tq.kv_list(p),
    ]


@scenario
def a_batch_that_was_cleared_meanwhile(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch())
    client = tq.get_client()
    meta = client.kv_retrieve_meta(KEYS, p)
    tq.kv_clear(KEYS[0], p)
    return [kind(lambda: client.get_data(meta)), isinstance(_raised(lambda: client.get_data(meta)), tq.StorageKeyNotFoundError), tq.kv_list(p)]


def _raised(call: Callable[[], Any]) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@scenario
def tags_of_a_batch(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["a", "b"], p, tags=[{"s": 1}, {"s": 2}])
    client = tq.get_client()
    meta = client.kv_retrieve_meta(["a", "b"], p)
    meta.update_custom_meta([{"t": 1}, {"s": 5}])
    client.set_custom_meta(meta)
    first = tq.kv_list(p)
    meta.update_custom_meta([{"u": 1}, {}])
    client.put(data=TensorDict({"x": torch.arange(2)}, batch_size=[2]), metadata=meta)
    return [first, tq.kv_list(p), kind(lambda: meta.update_custom_meta([{}]))]


@scenario
def batches_are_cleared(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch())
    client = tq.get_client()
    client.clear_samples(client.kv_retrieve_meta(KEYS[:2], p))
    first = tq.kv_list(p)
    client.clear_partition(p)
    client.clear_partition(p)
    return [first, p in client.get_partition_list(), p in tq.kv_list()]


@scenario
def a_parser_changes_columns(tq: Any, p: str) -> Any:
    def parse(columns: dict[str, Any]) -> dict[str, Any]:
        columns["text"] = [text.upper() for text in columns["text"]]
        columns["scalar"] = columns["scalar"] * 2
        columns["runs"] = [run + 1 for run in columns["runs"]]
        return columns

    tq.kv_batch_put(["a", "b"], p, batch(2), data_parser=parse)
    return tq.kv_batch_get(["a", "b"], p)


@scenario
def tasks_take_rows_in_order_each_once(tq: Any, p: str) -> Any:
    tq.kv_batch_put([f"k{at}" for at in range(5)], p, TensorDict({"x": torch.arange(5)}, batch_size=[5]), tags=[{"at": at} for at in range(5)])
    client = tq.get_client()
    ask = {"data_fields": ["x"], "partition_id": p, "mode": "fetch"}
    one = client.get_meta(batch_size=2, task_name="one", **ask)
    two = client.get_meta(batch_size=3, task_name="two", sampling_config={"dp_rank": 0}, **ask)
    rest = asyncio.run(client.async_get_meta(batch_size=3, task_name="one", **ask))
    client.put(data=TensorDict({"y": torch.arange(3)}, batch_size=[3]), metadata=rest)
    later = client.get_meta(["y"], 1, p, task_name="one too")
    return [one, two, rest, later, *(client.get_data(each)["x"] for each in (one, two)), client.kv_retrieve_keys(later.global_indexes, p)]


@scenario
def rows_without_keys(tq: Any, p: str) -> Any:
    client = tq.get_client()
    put = client.put(data=batch(3), partition_id=p)
    got = client.get_meta(data_fields=["runs", "text"], batch_size=3, partition_id=p, task_name="t")
    return [put.size, put.field_names, put.is_ready, got, client.get_data(got), tq.kv_list(p)]
