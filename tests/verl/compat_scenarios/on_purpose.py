"""Answers that are others on purpose: each has what ours is, and a line in docs/verl.md."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NonTensorData, TensorDict
from told import batch, differs, kind


@differs(["ValueError", ["dict", []]])
def a_key_that_comes_twice_in_a_put(tq: Any, p: str) -> Any:
    return [kind(lambda: tq.kv_batch_put(["a", "a"], p, batch(2))), dict.fromkeys(tq.kv_list(p), 1)]


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
