"""Columns as tensors: every kind and dtype bit for bit, over processes too; views of the queue's memory where there is no process between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory
from torch_streams import TOPIC, Served, drained, hidden, response

from tests.packaging.imports import imported, sources
from transfer_queue.columns import Jagged
from transfer_queue.local import LocalQueue
from transfer_queue.messages import Column, Consumer, TopicSpec, Window
from transfer_queue.torch_data import Batch, JaggedTensor, Masked, QueueDataset, QueueLoader
from transfer_queue.torch_data.batch import tensors
from transfer_queue.torch_data.loader import Handed


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as running:
        yield running


def loader(served: Served, workers: int, **settings: Any) -> QueueLoader:
    return QueueLoader(QueueDataset(served.url, TOPIC, "reader", timeout_s=10.0, **settings), num_workers=workers)


def check(batch: Batch) -> None:
    keys = batch.receipt.keys()
    assert len(batch) == len(keys)
    assert (batch.gids.tolist(), batch.rows.tolist()) == tuple(map(list, zip(*keys, strict=True)))
    assert batch.oldest_versions.tolist() == batch.newest_versions.tolist() == [0] * len(keys)
    assert (batch["response_ids"].values.dtype, batch["prompt_ids"].values.dtype) == (torch.int64, torch.int32)
    assert [run.tolist() for run in batch["response_ids"]] == [response(*key) for key in keys]
    assert [run.tolist() for run in batch["prompt_ids"]] == [[gid] * (gid % 3) for gid, _ in keys]
    assert (batch["hidden"].dtype, batch["hidden"].shape) == (torch.bfloat16, (len(keys), 3))
    assert batch["hidden"].view(torch.uint16).tolist() == [hidden(*key) for key in keys]
    assert batch["name"] == [f"row {row} of {gid}" for gid, row in keys]
    weight = batch["weight"]
    assert weight.present.tolist() == [row == 1 for _, row in keys]
    assert weight.values[weight.present].tolist() == [gid / 2 for gid, row in keys if row == 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_kind_of_column_comes_as_it_was_put_whatever_is_between(served: Served, workers: int) -> None:
    keys = served.fill(25)
    seen = drained(loader(served, workers, limit=9), len(keys), check)
    assert set(seen) == set(keys)


def memory_of(tensor: torch.Tensor) -> str:
    """What is mapped where its values lie; "" for memory of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(place, 16) for place in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < stop:
            return line.partition("/")[2]
    raise AssertionError("it lies nowhere")


def test_without_worker_processes_tensors_are_views_of_the_queues_memory_and_outlive_the_member(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transfer_queue.copying.MOST_BYTES", 0)  # as if these few bytes were many: few are copied
    keys = served.fill(10)
    stream = iter(loader(served, 0, limit=20))
    batch = next(stream)
    assert len(batch) == len(keys)
    assert {memory_of(batch["hidden"]).partition(":")[0], memory_of(batch["response_ids"].values).partition(":")[0]} == {"memfd"}
    stream.close()
    assert served.members() == set()
    check(batch)
    own = next(iter(loader(served, 0, limit=20, writable=True)))
    assert "memfd" not in memory_of(own["hidden"])
    own["hidden"].zero_()
    own["response_ids"].values.add_(1)
    drained(loader(served, 0, limit=20), len(keys), check)  # nobody else sees that


def test_what_came_from_a_worker_is_memory_of_its_own_and_may_be_changed(served: Served) -> None:
    served.fill(4)

    def change(batch: Batch) -> None:
        batch["response_ids"].values.mul_(2)
        batch["hidden"].zero_()

    drained(loader(served, 1, limit=8), 8, change)


def test_nothing_else_of_the_library_imports_this_package() -> None:
    others = [path for path in sources("transfer_queue") if "torch_data" not in path.parts]
    assert len(others) > 50
    assert [path for path in others if any("torch_data" in name for name in imported(path))] == []


def test_pinning_reaches_every_tensor_and_keeps_what_comes_beside_them(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch pins only where there is an accelerator: its walk through what a worker sends is the real one, its copy to pinned memory is a clone."""
    keys, pinned = served.fill(2), list[torch.Tensor]()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.clone()) or pinned[-1])
    for batch in loader(served, 0):
        receipt, same = pin_memory(Handed(batch.receipt, batch))
        assert receipt is same.receipt is batch.receipt
        check(same)
        own = {tensor.data_ptr() for tensor in pinned}
        columns = [same["hidden"], same["prompt_ids"].values, same["response_ids"].offsets, same["weight"].values, same["weight"].present]
        assert {tensor.data_ptr() for tensor in columns} <= own
        assert len(pinned) == 7
        break
    drained(loader(served, 0), len(keys))


# ------------------------------------------------------------ the shapes of columns


def test_runs_are_cut_padded_and_nested() -> None:
    runs = JaggedTensor(torch.arange(6, dtype=torch.int32), torch.tensor([0, 3, 3, 6]))
    assert len(runs) == 3
    assert [run.tolist() for run in runs] == [[0, 1, 2], [], [3, 4, 5]]
    assert runs[-1].tolist() == [3, 4, 5]
    with pytest.raises(IndexError):
        runs[3]
    assert runs.lengths.tolist() == [3, 0, 3]
    assert runs.padded(-1).tolist() == [[0, 1, 2], [-1, -1, -1], [3, 4, 5]]
    assert runs.padded(-1).dtype == torch.int32
    nested = JaggedTensor(torch.rand(6, 2), runs.offsets).nested()
    assert [len(run) for run in nested.unbind()] == [3, 0, 3]
    assert JaggedTensor(torch.zeros(0, 4), torch.zeros(1, dtype=torch.int64)).padded(0.0).shape == (0, 0, 4)
    hidden = JaggedTensor(torch.ones(3, 4, dtype=torch.bfloat16), torch.tensor([0, 1, 3]))
    assert hidden.padded(0.0).shape == (2, 2, 4)


@pytest.mark.parametrize("dtype", ["bool", "uint16", "uint32", "uint64", "float8_e8m0fnu", "float8_e5m2", "bfloat16", "complex64", "complex128"])
def test_runs_of_any_dtype_are_padded_bit_for_bit(dtype: str) -> None:
    values = torch.tensor([1, 0, 1, 1]).to(getattr(torch, dtype))
    padded = JaggedTensor(values, torch.tensor([0, 3, 3, 4])).padded(1)
    one, other = values[:1].view(torch.uint8).tolist(), values[1:2].view(torch.uint8).tolist()
    assert padded.dtype == values.dtype
    assert padded.view(torch.uint8).tolist() == [[*one, *other, *one], one * 3, one * 3]


@pytest.mark.parametrize("dtype", ["bool", "uint16", "float16", "bfloat16", "float8_e4m3fn", "complex64", "int8"])
def test_a_column_of_any_dtype_is_a_tensor_of_it_over_the_same_memory(dtype: str) -> None:
    values = torch.zeros(4, 2, dtype=getattr(torch, dtype))
    bits = values.view(torch.uint8).numpy().view({"bool": "bool", "complex64": "complex64", "int8": "int8", "float16": "float16"}.get(dtype, "uint8"))
    if dtype in ("uint16", "bfloat16"):
        bits = bits.view("uint16")
    got = tensors(Column("x", dtype, "scalar", "p", shape=(2,)), bits.reshape(4, 2), np.ones(4, bool))
    assert isinstance(got, torch.Tensor)
    assert got.dtype == values.dtype
    assert got.data_ptr() == bits.ctypes.data
    runs = tensors(Column("x", dtype, "per_token", "p"), Jagged(bits.reshape(-1), np.array([0, 3, 8]), dtype), np.ones(2, bool))
    assert isinstance(runs, JaggedTensor)
    assert (runs.values.dtype, runs.lengths.tolist()) == (values.dtype, [3, 5])


def test_an_optional_scalar_says_which_rows_have_it_also_when_all_do() -> None:
    column = Column("x", "float32", "scalar", "p", shape=(2,), optional=True)
    whole = tensors(column, np.ones((3, 2), dtype="float32"), np.ones(3, bool))
    assert isinstance(whole, Masked)
    assert (len(whole), whole.present.tolist()) == (3, [True] * 3)
    masked = np.ma.masked_array(np.ones((3, 2), dtype="float32"), mask=[[False] * 2, [True] * 2, [False] * 2])
    part = tensors(column, masked, np.array([True, False, True]))
    assert isinstance(part, Masked)
    assert part.present.tolist() == [True, False, True]


def test_a_row_without_an_optional_column_is_told_from_one_whose_value_is_empty_whatever_the_kind() -> None:
    kinds = ("per_token", "text", "blob", "object", "scalar")
    columns = tuple(Column(kind, "int32" if kind in ("scalar", "per_token") else "uint8", kind, "p", optional=True) for kind in kinds)
    empty = {"per_token": Jagged.of([[]], "int32"), "text": [""], "blob": [b""], "object": [[]], "scalar": np.zeros(1, "int32")}
    consumers = Consumer("c", inputs=(*kinds, "id")), Consumer("trainer", inputs=("id",), unit="group", terminal=True)
    spec = TopicSpec("o", "policy", (*columns, Column("id", "int32", "scalar", "p")), consumers, Window(8, None))
    with LocalQueue([spec]) as queue, queue.client("p-0") as producer:
        producer.put("o", {"id": np.zeros(1, "int32"), **empty})
        producer.put("o", {"id": np.ones(1, "int32")})
        loaded = QueueLoader(QueueDataset(queue.url, "o", "c", at_least=2))
        batch = next(iter(loaded))
        assert batch["id"].tolist() == [0, 1]
        assert (batch["text"], batch["blob"], batch["object"]) == (["", None], [b"", None], [[], None])
        assert batch["scalar"].present.tolist() == batch["per_token"].present.tolist() == [True, False]
        assert batch["per_token"].values.lengths.tolist() == [0, 0]
        assert batch.to("meta")["per_token"].values.values.device.type == "meta"


def test_what_a_collate_function_takes_out_of_a_batch_is_pinned_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # as above
    runs = JaggedTensor(torch.arange(3), torch.tensor([0, 1, 3]))
    for given in (runs, Masked(runs, torch.tensor([True, False]))):
        pinned = pin_memory({"a": given})["a"]
        assert type(pinned) is type(given)
        assert pinned is not given
        assert len(pinned) == 2


def test_a_batch_moves_as_a_whole(served: Served) -> None:
    served.fill(2)
    batch = next(iter(loader(served, 0)))
    moved = batch.to("meta")
    assert {moved["hidden"].device.type, moved["response_ids"].offsets.device.type, moved["weight"].present.device.type} == {"meta"}
    assert moved["name"] == batch["name"]
    assert moved.receipt is batch.receipt
    drained(loader(served, 0), 4)
