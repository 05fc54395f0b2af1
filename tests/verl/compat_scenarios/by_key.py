"""Which rows and columns a put makes and a get gives, and in which order keys are listed (meanings 1 to 4 and 9 of the plan)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict
from told import KEYS, NESTED, batch, kind, scenario


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


@scenario
def keys_are_listed_in_the_order_in_which_they_were_made(tq: Any, p: str) -> Any:
    tq.kv_batch_put(["c", "a", "b"], p, tags=[{"n": 1}, {"n": 2}, {"n": 3}])
    tq.kv_put("a", p, tag={"n": 4})
    before = tq.kv_list(p)
    tq.kv_clear(["c"], p)
    tq.kv_batch_put(["c", "d"], p, tags=[{}, {}])
    everything = tq.kv_list()
    return [before, tq.kv_list(partition_id=p), everything[p], p in everything]


@scenario
def keys_of_any_characters(tq: Any, p: str) -> Any:
    keys = ["uid_0_1", "padDEADBEEF_3_0", "schlüssel 鍵 🔑", "a/b:c%d", " "]
    fields = TensorDict({"x": torch.arange(5), "spälte x": torch.arange(5)}, batch_size=[5])
    tq.kv_batch_put(keys, p + " é", fields, tags=[{"k": key} for key in keys])
    return [tq.kv_list(p + " é"), tq.kv_batch_get(keys[::-1], p + " é")]


@scenario
def many_rows_and_columns(tq: Any, p: str) -> Any:
    """An odd number of rows, so that no shard has the same share."""
    rows, generator = 129, torch.Generator().manual_seed(7)
    lengths = torch.randint(0, 9, (rows,), generator=generator).tolist()
    columns: dict[str, Any] = {}
    for at in range(9):
        columns[f"c{at}"] = NESTED([torch.rand(length, generator=generator) for length in lengths], layout=torch.jagged)
    columns |= {"score": torch.rand(rows, generator=generator), "prompt": NonTensorStack(*[f"p{at}" * (at % 3) for at in range(rows)])}
    keys = [f"k{at}" for at in range(rows)]
    tq.kv_batch_put(keys, p, TensorDict(columns, batch_size=[rows]))
    return tq.kv_batch_get(keys[::-1], p)
