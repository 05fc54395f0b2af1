"""What a program sees of the package TransferQueue 0.1.11: scenarios that run against that package and against ours, each in a partition of its own.

    python compat_scenarios.py baseline|ours      # answers as JSON, a line

An answer is told by value and type: dtype, layout, offsets, bits, order; an error by its kind, the built-in class that a caller would catch.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

Scenario = Callable[[Any, str], Any]
SCENARIOS: dict[str, Scenario] = {}
OURS: dict[str, Any] = {}  # name → what ours answers, where it is another answer on purpose; docs/verl.md says why
KINDS = (ValueError, TypeError, KeyError, IndexError, AttributeError, TimeoutError, AssertionError, RuntimeError)
NESTED = torch.nested.as_nested_tensor


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def differs(ours: Any) -> Callable[[Scenario], Scenario]:
    def mark(function: Scenario) -> Scenario:
        OURS[function.__name__] = ours
        return scenario(function)

    return mark


def told(value: Any) -> Any:
    """Plain data that is the same only for what is the same to a caller."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            ragged = value._ragged_idx if value.layout is torch.jagged else None  # type: ignore[attr-defined]
            seen = [told(value.offsets()), told(value.values())] if value.layout is torch.jagged else []
            return ["nested", str(value.layout), ragged, [told(row) for row in value.unbind()], *seen]
        bits = value.contiguous().reshape(-1).view(torch.uint8).tolist() if value.numel() else []
        return ["tensor", str(value.dtype), list(value.shape), bits]
    if isinstance(value, NonTensorStack):
        return ["NonTensorStack", [told(each) for each in value.tolist()]]
    if isinstance(value, TensorDict):
        return ["TensorDict", list(value.batch_size), {name: told(value.get(name)) for name in value.keys()}, list(value.keys())]  # noqa: SIM118
    if type(value).__name__ == "KVBatchMeta":
        return ["KVBatchMeta", value.keys, told(value.tags), value.partition_id, value.fields, told(value.extra_info), len(value), value.size]
    if type(value).__name__ == "BatchMeta":  # its numbers are each package's own
        told_tags = told(value.get_all_custom_meta())
        return ["BatchMeta", value.size, value.partition_ids, value.field_names, value.is_ready, told_tags, told(value.extra_info), len(value)]
    if isinstance(value, np.ndarray | np.generic):
        return [type(value).__name__, str(value.dtype), list(value.shape), told(value.tolist())]
    if isinstance(value, dict):
        return [type(value).__name__, [[told(key), told(item)] for key, item in value.items()]]
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [type(value).__name__, [told(item) for item in items]]
    return [type(value).__name__, repr(value)]


def kind(call: Callable[[], Any]) -> str:
    """How `call` fails: the first of KINDS."""
    try:
        call()
    except Exception as error:
        return next((each.__name__ for each in KINDS if isinstance(error, each)), type(error).__name__)
    return "no error"


def batch(rows: int = 3) -> TensorDict:
    runs = [torch.arange(length) for length in (2, 3, 1, 4)[:rows]]
    return TensorDict(
        {
            "scalar": torch.arange(rows) + 0.5,
            "dense": torch.arange(rows * 2.0).reshape(rows, 2),
            "runs": NESTED(runs, layout=torch.jagged),
            "text": NonTensorStack(*[f"text {row}" for row in range(rows)]),
        },
        batch_size=[rows],
    )


KEYS = ["uid-a_0_0", "uid-a_1_0", "uid-b_0_0"]


# ------------------------------------------------------------ 1: what a put makes and returns


@scenario
def a_put_makes_partition_and_keys_and_names_all_columns(tq: Any, p: str) -> Any:
    return [tq.kv_batch_put(keys=KEYS, partition_id=p, fields=batch(), tags=[{"status": "running", "seq_len": 7}, {}, {"x": None}]), tq.kv_list(p)]


@scenario
def tags_are_merged_and_returned(tq: Any, p: str) -> Any:
    first = tq.kv_put(key="a", partition_id=p, tag={"status": "pending", "step": 1, "nested": {"x": 1}})
    second = tq.kv_put(key="a", partition_id=p, tag={"status": "running", "nested": {"y": 2}})
    third = tq.kv_batch_put(keys=["a", "b"], partition_id=p, fields=batch(2), tags=[{"end": True}, {}])
    fourth = tq.kv_batch_put(keys=["b", "a"], partition_id=p, fields=batch(2))
    return [first, second, third, fourth, tq.kv_list(p)]


@scenario
def fields_of_a_put_are_what_all_its_keys_have(tq: Any, p: str) -> Any:
    one = tq.kv_batch_put(["a", "b"], p, TensorDict({"z": torch.arange(2), "a": torch.arange(2)}, batch_size=[2]))
    two = tq.kv_batch_put(["b", "c"], p, TensorDict({"m": torch.arange(2)}, batch_size=[2]))
    three = tq.kv_batch_put(["b"], p, tags=[{"s": 1}])
    return [one, two, three, tq.kv_put("new", p, tag={})]


@scenario
def tags_of_many_types(tq: Any, p: str) -> Any:
    tag = {"i": 1, "f": 0.5, "b": False, "n": None, "s": "é", "l": [1, "x"], "d": {"k": [1.5]}, "np": np.int64(3), "f32": np.float32(0.1)}
    return [tq.kv_put("a", p, tag=tag), tq.kv_list(p)]


@scenario
def a_single_put_takes_values_without_a_batch_axis(tq: Any, p: str) -> Any:
    meta = tq.kv_put("a", p, fields={"run": torch.tensor([1, 2, 3]), "score": torch.tensor(0.5), "text": "x", "data": {"k": [1]}}, tag={"s": 1})
    whole = tq.kv_put("b", p, fields=TensorDict({"run": torch.tensor([[4]])}, batch_size=[1]))
    return [meta, whole, tq.kv_batch_get("a", p), tq.kv_batch_get(["a", "b"], p)]


# ------------------------------------------------------------ 2, 3: which columns and rows a get gives


@scenario
def columns_that_some_row_lacks_are_left_out(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["a", "b"], p, batch(2))
    tq.kv_put("a", p, fields={"extra": torch.tensor([1])})
    return [
        tq.kv_batch_get(["a", "b"], p),
        tq.kv_batch_get(["a"], p),
        tq.kv_batch_get(["a", "b"], p, select_fields=["extra", "runs", "nobody", "dense", "runs"]),
        tq.kv_batch_get(keys=["a", "b"], partition_id=p, select_fields="scalar"),
        tq.kv_batch_get(["a", "b"], p, select_fields=["nobody"]),
        tq.kv_batch_get(["a", "b"], p, select_fields=[]),
    ]


@scenario
def rows_come_in_the_order_of_the_request(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch())
    return [tq.kv_batch_get([KEYS[2], KEYS[0]], p), tq.kv_batch_get([KEYS[1], KEYS[1], KEYS[0]], p)]


@scenario
def unknown_keys_are_left_out(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch())
    return [
        tq.kv_batch_get(["nobody", KEYS[1], "no one"], p),
        kind(lambda: tq.kv_batch_get(["nobody"], p)),
        kind(lambda: tq.kv_batch_get(["a"], p + " that is not there")),
        tq.kv_clear(["nobody", KEYS[0]], p),
        tq.kv_clear("nobody", p + " that is not there"),
        tq.kv_list(p),
        tq.kv_list(p + " that is not there"),
    ]


@scenario
def keys_with_tags_alone_have_nothing_to_get(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["a", "b"], p, tags=[{"s": 1}, {"s": 2}])
    tq.kv_batch_put(["c"], p, batch(1))
    return [kind(lambda: tq.kv_batch_get(["a", "b"], p)), kind(lambda: tq.kv_batch_get(["a", "c"], p)), tq.kv_batch_get(["c"], p)]


@scenario
def no_keys_are_an_error(tq: Any, p: str) -> Any:
    tq.kv_put("a", p, tag={})
    client = tq.get_client()
    return [
        kind(lambda: tq.kv_batch_get([], p)),
        kind(lambda: tq.kv_clear([], p)),
        kind(lambda: tq.kv_batch_put([], p, tags=[])),
        kind(lambda: client.kv_retrieve_meta([], p)),
        kind(lambda: client.kv_retrieve_keys([], p)),
    ]


@scenario
def what_is_no_key_is_an_error(tq: Any, p: str) -> Any:
    client = tq.get_client()
    return [
        kind(lambda: tq.kv_batch_get(("a", "b"), p)),
        kind(lambda: tq.kv_batch_get([1], p)),
        kind(lambda: tq.kv_put(1, p, tag={})),
        kind(lambda: client.kv_retrieve_meta(5, p)),
        kind(lambda: client.kv_retrieve_keys("a", p)),
        kind(lambda: client.kv_retrieve_keys(["a"], p)),
    ]


@scenario
def puts_that_do_not_fit_are_errors(tq: Any, p: str) -> Any:
    return [
        kind(lambda: tq.kv_batch_put(["a"], p)),
        kind(lambda: tq.kv_put("a", p)),
        kind(lambda: tq.kv_batch_put(["a", "b"], p, batch(3))),
        kind(lambda: tq.kv_batch_put(["a", "b"], p, batch(2), tags=[{}])),
        kind(lambda: tq.kv_batch_put(["a", "b"], p, tags=[{}])),
        kind(lambda: tq.kv_put("a", p, fields={"x": NESTED([torch.arange(2)], layout=torch.jagged)})),
        kind(lambda: tq.kv_put("a", p, fields=[1])),
    ]


@scenario
def a_get_by_meta(tq: Any, p: str) -> Any:
    meta = tq.kv_batch_put(KEYS, p, batch())
    tq.kv_batch_put(KEYS, p, TensorDict({"later": torch.arange(3)}, batch_size=[3]))
    whole = tq.KVBatchMeta(keys=KEYS[:2], tags=[{}, {}], partition_id=p, fields=None)
    homeless = tq.KVBatchMeta(keys=KEYS[:2], tags=[{}, {}], fields=["runs"])
    return [
        tq.kv_batch_get_by_meta(meta),
        tq.kv_batch_get_by_meta(meta, select_fields="runs"),
        tq.kv_batch_get_by_meta(meta, select_fields=["runs", "text"]),
        kind(lambda: tq.kv_batch_get_by_meta(meta, select_fields=["later"])),
        tq.kv_batch_get_by_meta(whole),
        kind(lambda: tq.kv_batch_get_by_meta(whole, "runs")),
        kind(lambda: tq.kv_batch_get_by_meta(homeless)),
    ]


# ------------------------------------------------------------ 4: order of keys


@scenario
def keys_are_listed_in_the_order_in_which_they_were_made(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["c", "a", "b"], p, tags=[{"n": 1}, {"n": 2}, {"n": 3}])
    tq.kv_put("a", p, tag={"n": 4})
    before = tq.kv_list(p)
    tq.kv_clear(["c"], p)
    tq.kv_batch_put(["c", "d"], p, tags=[{}, {}])
    everything = tq.kv_list()
    return [before, tq.kv_list(partition_id=p), everything[p], p in everything]


# ------------------------------------------------------------ 5: overwriting


@scenario
def cells_are_overwritten_with_other_lengths_and_kinds(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch())
    longer = NESTED([torch.arange(5), torch.arange(0), torch.arange(1)], layout=torch.jagged)
    tq.kv_batch_put([KEYS[2], KEYS[0], KEYS[1]], p, TensorDict({"runs": longer, "text": NonTensorStack({"a": 1}, None, "z")}, batch_size=[3]))
    first = tq.kv_batch_get(KEYS, p)
    tq.kv_batch_put(KEYS[:1], p, TensorDict({"runs": torch.arange(4)[None], "dense": torch.zeros(1, 5)}, batch_size=[1]))
    return [first, tq.kv_batch_get(KEYS, p)]


# ------------------------------------------------------------ 6: what comes back


@scenario
def rows_without_axes_are_dense(tq: Any, p: str) -> Any:
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]
    columns = {str(dtype).removeprefix("torch."): torch.tensor([0, 1, 2]).to(dtype) for dtype in dtypes}
    tq.kv_batch_put(KEYS, p, TensorDict(columns, batch_size=[3]))
    return tq.kv_batch_get(KEYS, p)


@scenario
def rows_with_axes_are_jagged_however_they_were_put(tq: Any, p: str) -> Any:
    rows = [torch.arange(3.0), torch.arange(3.0) + 1]
    columns = {"dense": torch.stack(rows), "nested": NESTED(rows, layout=torch.jagged), "wide": torch.arange(12).reshape(2, 3, 2)}
    columns |= {"one": torch.arange(2)[:, None], "objects": NonTensorStack(*rows), "strided": NESTED(rows, layout=torch.strided)}
    tq.kv_batch_put(["a", "b"], p, TensorDict(columns, batch_size=[2]))
    return [tq.kv_batch_get(["a", "b"], p), tq.kv_batch_get(["b"], p)]


@scenario
def runs_of_every_dtype(tq: Any, p: str) -> Any:
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8]
    lengths = (2, 0, 3)
    columns = {str(dtype): NESTED([torch.arange(length).to(dtype) for length in lengths], layout=torch.jagged) for dtype in dtypes}
    tq.kv_batch_put(KEYS, p, TensorDict(columns, batch_size=[3]))
    return tq.kv_batch_get(KEYS, p)


@scenario
def empty_runs(tq: Any, p: str) -> Any:
    columns = {"none": NESTED([torch.zeros(0), torch.zeros(0)], layout=torch.jagged), "dense": torch.zeros(2, 0, dtype=torch.int64)}
    tq.kv_batch_put(["a", "b"], p, TensorDict(columns, batch_size=[2]))
    found = tq.kv_batch_get(["a", "b"], p)
    return [found, found["none"].to_padded_tensor(0.0)]


@scenario
def values_without_elements(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["a", "b"], p, TensorDict({"x": torch.zeros(2, 3, 0), "y": torch.zeros(2, 0, 3)}, batch_size=[2]))
    return tq.kv_batch_get(["a", "b"], p)


@scenario
def numbers_that_are_none(tq: Any, p: str) -> Any:
    strange = torch.tensor([[float("nan"), float("inf")], [-0.0, 1e-40]])
    tq.kv_batch_put(["a", "b"], p, TensorDict({"x": strange, "y": strange[:, 0].clone(), "z": strange.to(torch.bfloat16)}, batch_size=[2]))
    return tq.kv_batch_get(["a", "b"], p)


@scenario
def position_ids_whose_last_axis_is_the_ragged_one(tq: Any, p: str) -> Any:
    rows = [torch.arange(4 * length).reshape(4, length) for length in (3, 5, 1)]
    for key, row in zip(KEYS, rows, strict=True):
        tq.kv_batch_put([key], p, TensorDict({"position_ids": row[None], "seen": NESTED([row.T.contiguous()], layout=torch.jagged)}, batch_size=[1]))
    first = tq.kv_batch_get(KEYS, p)
    tq.kv_batch_put(KEYS, p, TensorDict({"again": first["position_ids"]}, batch_size=[3]))
    return [first, tq.kv_batch_get(KEYS, p), tq.kv_batch_get(KEYS[1:2], p)]


@scenario
def rows_that_are_ragged_in_two_axes(tq: Any, p: str) -> Any:
    rows = NESTED([torch.zeros(2, 3), torch.ones(4, 5)], layout=torch.strided)
    tq.kv_batch_put(["a", "b"], p, TensorDict({"x": rows}, batch_size=[2]))
    return tq.kv_batch_get(["a", "b"], p)


@scenario
def rows_with_other_numbers_of_axes(tq: Any, p: str) -> Any:
    tq.kv_put("a", p, fields={"x": torch.arange(2)})
    tq.kv_put("b", p, fields={"x": torch.arange(2).reshape(1, 2)})
    tq.kv_put("c", p, fields={"x": torch.tensor(5)})
    return [tq.kv_batch_get(["a", "b"], p), tq.kv_batch_get(["a", "c"], p), tq.kv_batch_get(["c"], p)]


@scenario
def values_that_are_no_tensors(tq: Any, p: str) -> Any:
    columns = {
        "text": NonTensorStack("a", "", "é\n"),
        "bytes": NonTensorStack(b"a", b"", b"\xff"),
        "numbers": NonTensorStack(1, 2, 3),
        "mixed": NonTensorStack(1, None, "x"),
        "none": NonTensorStack(None, None, None),
        "dicts": NonTensorStack({"a": 1}, {}, {"b": {"c": (1, 2)}}),
        "lists": NonTensorStack([1, 2], [], ["x", [3.5]]),
        "arrays": NonTensorStack(np.arange(3), np.zeros((2, 2), dtype=np.float32), np.array(["x", "yy"])),
        "objects": NonTensorStack(np.array([{"a": 1}, None], dtype=object), np.str_("s"), np.int32(4)),
        "sets": NonTensorStack({1, 2}, frozenset({"a"}), complex(1, 2)),
        "large": NonTensorStack(2**70, -(2**70), True),
        "tensors": NonTensorStack(torch.arange(2), None, {"t": torch.ones(2, dtype=torch.bfloat16)}),
    }
    tq.kv_batch_put(KEYS, p, TensorDict(columns, batch_size=[3]))
    return [tq.kv_batch_get(KEYS, p), tq.kv_batch_get(KEYS[1:2], p)]


@scenario
def lists_and_arrays_become_what_tensordict_makes_of_them(tq: Any, p: str) -> Any:
    columns = {"list": ["a", "b"], "objects": np.array(["a", {"b": 1}], dtype=object).tolist(), "floats": np.arange(2.0)}
    tq.kv_batch_put(["a", "b"], p, TensorDict(columns, batch_size=[2]))
    return tq.kv_batch_get(["a", "b"], p)


@scenario
def a_tensor_row_among_others(tq: Any, p: str) -> Any:
    tq.kv_put("a", p, fields={"x": torch.arange(2)})
    tq.kv_put("b", p, fields={"x": "text"})
    return [tq.kv_batch_get(["a", "b"], p), tq.kv_batch_get(["a"], p), tq.kv_batch_get(["b"], p)]


@scenario
def a_transposed_tensor(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["a", "b"], p, TensorDict({"t": torch.arange(6.0).reshape(3, 2).T}, batch_size=[2]))
    return tq.kv_batch_get(["a", "b"], p)


@scenario
def a_column_gets_another_dtype(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["a", "b"], p, TensorDict({"x": torch.tensor([1.5, 2.5]), "runs": torch.ones(2, 2)}, batch_size=[2]))
    tq.kv_put("b", p, fields={"x": torch.tensor(7, dtype=torch.int32), "runs": torch.tensor([7])})
    return [tq.kv_batch_get("b", p), tq.kv_batch_get("a", p), tq.kv_batch_get(["a", "b"], p)]


@scenario
def what_verl_does_with_a_column(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch())
    found = tq.kv_batch_get(KEYS, p)
    runs = found["runs"]
    return [
        *(runs.offsets(), runs.values(), runs.to_padded_tensor(0), runs.sum(dim=1), list(runs), runs.offsets().diff()),
        *(found["text"], list(found["text"]), found[0]["runs"], found[1]["text"], found["scalar"].tolist(), found.select("dense")),
    ]


@scenario
def what_was_put_may_be_changed_afterwards_and_what_was_got_too(tq: Any, p: str) -> Any:
    """7: the TensorDict is the caller's."""
    fields = TensorDict({"x": torch.arange(4.0).reshape(2, 2), "y": torch.arange(2)}, batch_size=[2])
    tq.kv_batch_put(["a", "b"], p, fields)
    fields["x"].fill_(9)
    first = tq.kv_batch_get(["a", "b"], p)
    first["x"].values().fill_(7)
    first["y"] += 1
    first.pop("y")
    first["z"] = NonTensorData("new", batch_size=[2])
    return [first, tq.kv_batch_get(["a", "b"], p)]


# ------------------------------------------------------------ 8: batches


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


# ------------------------------------------------------------ metas


@scenario
def key_metas(tq: Any, p: str) -> Any:
    tags, info = [{"n": [1]}, {"n": [2]}, {"n": [3]}], {"step": [1]}
    meta = tq.KVBatchMeta(keys=list("abc"), tags=tags, partition_id=p, fields=["x"], extra_info=info)
    tags[0]["n"].append(9)
    info["step"].append(9)
    parts = meta.chunk(2)
    more = meta.chunk(5)
    joined = tq.KVBatchMeta.concat([*parts, tq.KVBatchMeta()])
    other = tq.KVBatchMeta(keys=["d"], tags=[{}], partition_id=p, fields=["x"], extra_info={"step": [2]})
    meta.reorder([2, 0, 1])
    meta.extra_info["metrics"] = 1
    meta.keys = [*meta.keys]
    return [
        *(meta, parts, more, joined, meta.select_keys(["a", "c"]), tq.KVBatchMeta(), tq.KVBatchMeta.concat([]), pickle.loads(pickle.dumps(meta))),
        kind(lambda: tq.KVBatchMeta(keys=["a", "a"], tags=[{}, {}])),
        kind(lambda: tq.KVBatchMeta(keys=["a"], tags=[{}], fields=["x", "x"])),
        kind(lambda: tq.KVBatchMeta(keys=["a"], tags=[])),
        kind(lambda: meta.reorder([0, 1])),
        kind(lambda: meta.reorder([0, 1, 1])),
        kind(lambda: meta.select_keys(["z"])),
        kind(lambda: meta.select_keys(["a", "a"])),
        kind(lambda: tq.KVBatchMeta.concat([joined, other])),
        kind(lambda: tq.KVBatchMeta.concat([joined, joined])),
        kind(lambda: tq.KVBatchMeta.concat([joined, tq.KVBatchMeta(keys=["d"], tags=[{}], partition_id="else", fields=["x"])])),
        kind(lambda: tq.KVBatchMeta.concat([joined, tq.KVBatchMeta(keys=["d"], tags=[{}], partition_id=p, fields=["y"])])),
        *(meta == pickle.loads(pickle.dumps(meta)), [key for key in meta.keys]),  # noqa: C416
    ]


@scenario
def row_metas(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch(), tags=[{"s": 1}, {"s": 2}, {"s": 3}])
    meta = tq.get_client().kv_retrieve_meta(KEYS, p)
    meta.extra_info = {"step": 1}
    selected = meta.select_fields(["runs", "nobody"])
    parts = meta.chunk(chunks=2)
    joined = tq.BatchMeta.concat(parts)
    back = pickle.loads(pickle.dumps(meta))
    numbers = {number: at for at, number in enumerate(meta.global_indexes)}
    turned = meta.copy()
    turned.reorder([2, 0, 1])
    union = selected.union(meta.select_fields(["text"]))
    return [
        *(selected, parts, joined, back, turned, [numbers[each] for each in turned.global_indexes], union, meta.chunk(4)[3], meta[1], meta[1:], meta[-1]),
        *(meta.select_samples([2, 2, 0]), joined.global_indexes == meta.global_indexes, back.global_indexes == meta.global_indexes),
        *([part.size for part in meta.chunk_by_partition()], tq.BatchMeta.empty(), tq.BatchMeta.concat([]), tq.BatchMeta.empty({"a": 1})),
        *(meta.samples[1].custom_meta["s"], len(meta.samples), [each.partition_id for each in meta.samples], meta.samples[0].production_status),
        *(meta.get_extra_info("step"), meta.get_extra_info("no", 5), meta.has_extra_info("step"), meta.remove_extra_info("step"), meta.extra_info),
        kind(lambda: meta.reorder([0, 1])),
        kind(lambda: meta.reorder([0, 0, 1])),
        kind(lambda: meta.reorder([0, 1, 5])),
        kind(lambda: meta.select_samples([5])),
        kind(lambda: meta[9]),
        kind(lambda: meta["a"]),
        kind(lambda: tq.BatchMeta.concat([selected, meta])),
        kind(lambda: parts[0].union(parts[1])),
        kind(lambda: tq.BatchMeta([1, 2], [p])),
        kind(lambda: meta.add_fields(batch(2))),
        kind(lambda: meta.get_dtypes("nobody")),
    ]


@scenario
def what_a_put_says_of_its_columns(tq: Any, p: str) -> Any:
    client = tq.get_client()
    meta = client.put(data=batch(), metadata=client.kv_retrieve_meta(KEYS, p, create=True))
    names = ["scalar", "dense", "runs", "text"]
    return [
        [[str(dtype) for dtype in meta.get_dtypes(name)] for name in names],
        [[None if shape is None else list(shape) for shape in meta.get_shapes(name)] for name in names],
        [meta.field_schema[name]["is_nested"] for name in names],
        [meta.field_schema[name]["is_non_tensor"] for name in names],
        list(meta.samples[1].fields["runs"]["shape"]),
        meta.is_ready,
    ]


# ------------------------------------------------------------ 9: keys as verl makes them, and others


@scenario
def keys_of_any_characters(tq: Any, p: str) -> Any:
    keys = ["uid_0_1", "padDEADBEEF_3_0", "schlüssel 鍵 🔑", "a/b:c%d", " "]
    tq.kv_batch_put(keys, p + " é", TensorDict({"x": torch.arange(5), "spälte x": torch.arange(5)}, batch_size=[5]), tags=[{"k": key} for key in keys])
    return [tq.kv_list(p + " é"), tq.kv_batch_get(keys[::-1], p + " é")]


@scenario
def many_rows_and_columns(tq: Any, p: str) -> Any:
    """An odd number of rows, so that no shard has the same share."""
    rows, generator = 129, torch.Generator().manual_seed(7)
    lengths = torch.randint(0, 9, (rows,), generator=generator).tolist()
    columns: dict[str, Any] = {f"c{at}": NESTED([torch.rand(length, generator=generator) for length in lengths], layout=torch.jagged) for at in range(9)}
    columns |= {"score": torch.rand(rows, generator=generator), "prompt": NonTensorStack(*[f"p{at}" * (at % 3) for at in range(rows)])}
    keys = [f"k{at}" for at in range(rows)]
    tq.kv_batch_put(keys, p, TensorDict(columns, batch_size=[rows]))
    return tq.kv_batch_get(keys[::-1], p)


# ------------------------------------------------------------ answers that are others on purpose


@differs(["ValueError", ["dict", []]])
def a_key_that_comes_twice_in_a_put(tq: Any, p: str) -> Any:
    return [kind(lambda: tq.kv_batch_put(["a", "a"], p, batch(2))), {key: 1 for key in tq.kv_list(p)}]


@differs([False, ["dict", []]])
def a_partition_goes_with_its_last_key(tq: Any, p: str) -> Any:
    tq.kv_put("a", p, tag={})
    tq.kv_clear("a", p)
    return [p in tq.kv_list(), tq.kv_list(p)]


@differs([["tensor", "torch.int64", [2], [0] * 8 + [4] + [0] * 7]])
def every_fourth_element(tq: Any, p: str) -> Any:
    fields = TensorDict({"step": torch.arange(8)[::4]}, batch_size=[2])
    put = kind(lambda: tq.kv_batch_put(["a", "b"], p, fields))
    return [tq.kv_batch_get(["a", "b"], p)["step"] if put == "no error" else put]


@differs([["tuple", [["int", "1"], ["int", "2"]]]])
def a_tuple_in_a_tag(tq: Any, p: str) -> Any:
    tq.kv_put("a", p, tag={"t": (1, 2)})
    return [tq.kv_list(p)[p]["a"]["t"]]


@differs([["NonTensorStack", [["str", "'all'"], ["str", "'all'"]]]])
def one_value_for_all_rows(tq: Any, p: str) -> Any:
    fields = TensorDict({"x": NonTensorData("all", batch_size=[2])}, batch_size=[2])
    put = kind(lambda: tq.kv_batch_put(["a", "b"], p, fields))
    return [tq.kv_batch_get(["a", "b"], p).get("x") if put == "no error" else put]


@differs(["ValueError"])
def an_empty_key(tq: Any, p: str) -> Any:
    return [kind(lambda: tq.kv_put("", p, tag={}))]


@differs(["RuntimeError"])
def keys_of_rows_that_are_gone(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["a", "b"], p, tags=[{}, {}])
    client = tq.get_client()
    meta = client.kv_retrieve_meta(["a", "b"], p)
    tq.kv_clear("a", p)
    return [kind(lambda: client.kv_retrieve_keys(meta.global_indexes, p))]


@differs([0])
def an_empty_meta_without_arguments(tq: Any, p: str) -> Any:
    try:
        return [tq.BatchMeta().size]
    except TypeError:
        return ["TypeError"]


@differs([["dict", [[["str", "'b'"], ["dict", []]]]]])
def a_put_of_rows_that_were_cleared_meanwhile(tq: Any, p: str) -> Any:
    """A worker that comes late: its number may be another row's by then."""
    tq.kv_batch_put(["a"], p, TensorDict({"x": torch.tensor([1])}, batch_size=[1]))
    client = tq.get_client()
    late = client.kv_retrieve_meta(["a"], p)
    tq.kv_clear("a", p)
    tq.kv_put("b", p, tag={})
    client.put(data=TensorDict({"x": torch.tensor([2])}, batch_size=[1]), metadata=late)
    listed = tq.kv_list(p)[p]
    return [listed] if kind(lambda: tq.kv_batch_get("b", p)) == "ValueError" else [["b has a column that nobody put there"]]


@differs([["dict", [[["str", "'a'"], ["int", "1"]], [["str", "'b'"], ["int", "2"]]]]])
def two_writers_of_one_tag(tq: Any, p: str) -> Any:
    """Each knows the tag from before the other's put."""
    tq.kv_put("k", p, tag={})
    client = tq.get_client()
    one, two = client.kv_retrieve_meta("k", p), client.kv_retrieve_meta("k", p)
    one.update_custom_meta([{"a": 1}])
    client.set_custom_meta(one)
    two.update_custom_meta([{"b": 2}])
    client.set_custom_meta(two)
    return [dict(tq.kv_list(p)[p]["k"])]


def answers(tq: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, function in SCENARIOS.items():
        try:
            answer = function(tq, name)
            found[name] = [told(each) if not isinstance(each, str | bool | int) else each for each in (answer if isinstance(answer, list) else [answer])]
        except Exception as error:
            found[name] = ["RAISED", type(error).__name__, str(error)[:500], traceback.format_exc()[-1500:]]
    return found


def main(side: str) -> None:
    import transfer_queue as tq

    if side == "baseline":
        import ray

        assert "baseline" in str(tq.__file__), tq.__file__
        ray.init(num_cpus=32, include_dashboard=False, object_store_memory=100 << 20, logging_level="ERROR", log_to_driver=False)
    tq.init()
    try:
        print("\n" + json.dumps(answers(tq)))
    finally:
        tq.close()


if __name__ == "__main__":
    main(sys.argv[1])
