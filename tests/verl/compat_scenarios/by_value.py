"""What comes back of a value, however it was put and overwritten (meanings 5 to 7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from told import KEYS, NESTED, batch, scenario


@scenario
def cells_are_overwritten_with_other_lengths_and_kinds(tq: Any, p: str) -> Any:
    tq.kv_batch_put(KEYS, p, batch())
    longer = NESTED([torch.arange(5), torch.arange(0), torch.arange(1)], layout=torch.jagged)
    tq.kv_batch_put([KEYS[2], KEYS[0], KEYS[1]], p, TensorDict({"runs": longer, "text": NonTensorStack({"a": 1}, None, "z")}, batch_size=[3]))
    first = tq.kv_batch_get(KEYS, p)
    tq.kv_batch_put(KEYS[:1], p, TensorDict({"runs": torch.arange(4)[None], "dense": torch.zeros(1, 5)}, batch_size=[1]))
    return [first, tq.kv_batch_get(KEYS, p)]


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
