"""Batches of a stream: micro-batches with their metas, kept for a second pass, in this process and in a loader's worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.verl.children import error_of, said

pytestmark = [pytest.mark.verl, pytest.mark.timeout(200)]
BEGIN = """
import itertools, json, threading, time
import torch
from tensordict import NonTensorStack, TensorDict
import transfer_queue as tq
tq.init()

def put(first, rows):
    runs = torch.nested.as_nested_tensor([torch.full((at % 3,), at) for at in range(first, first + rows)], layout=torch.jagged)
    fields = TensorDict({"x": torch.arange(first, first + rows), "runs": runs, "t": NonTensorStack(*map(str, range(rows)))}, batch_size=[rows])
    tq.kv_batch_put([f"k{at}" for at in range(first, first + rows)], "p", fields)

def stream(**more):
    return tq.StreamingDataset(None, **({"batch_size": 5, "micro_batch_size": 2, "data_fields": ["x", "runs", "t"], "partition_id": "p",
                                         "task_name": "train", "dp_rank": 0} | more))

def plain(batch):
    fields, meta = batch
    keys = tq.get_client().kv_retrieve_keys(meta.global_indexes, "p")
    return [fields["x"].tolist(), [row.tolist() for row in fields["runs"].unbind()], meta.size, keys]
"""
END = "\nprint(json.dumps(found)); tq.close()"


def told(code: str) -> Any:
    return json.loads(said(BEGIN + code + END, limit_s=100))


def rows(*numbers: int) -> list[Any]:
    return [list(numbers), [[at] * (at % 3) for at in numbers], len(numbers), [f"k{at}" for at in numbers]]


def test_micro_batches_come_with_the_metas_of_their_rows_and_again_after_a_reset() -> None:
    found = told("""
put(0, 10)
loader = tq.StreamingDataLoader(stream())
first = [plain(each) for each in itertools.islice(loader, 6)]
loader.reset()
again = [plain(each) for each in itertools.islice(loader, 2)]
found = [first, again, len(loader.get_buffer())]
""")
    assert found == [[rows(0, 1), rows(2, 3), rows(4), rows(5, 6), rows(7, 8), rows(9)], [rows(0, 1), rows(2, 3)], 2]


def test_a_stream_waits_for_rows_that_are_put_later() -> None:
    found = told("""
threading.Thread(target=lambda: (time.sleep(1.5), put(0, 5))).start()
found = [plain(each) for each in itertools.islice(iter(stream()), 3)]
""")
    assert found == [rows(0, 1), rows(2, 3), rows(4)]


def test_a_worker_process_of_the_loader_has_a_connection_of_its_own() -> None:
    found = told("""
put(0, 10)
loader = tq.StreamingDataLoader(stream(), num_workers=1, prefetch_factor=1)
found = [plain(each) for each in itertools.islice(loader, 6)]
""")
    assert found == [rows(0, 1), rows(2, 3), rows(4), rows(5, 6), rows(7, 8), rows(9)]


def test_too_few_rows_end_a_get_with_who_waits_for_what() -> None:
    code = BEGIN + "import transfer_queue.compat.client as c; c.TAKE_S = 0.5; put(0, 2); tq.get_client().get_meta(['x'], 3, 'p', task_name='train')"
    status, error = error_of(code)
    assert status == 1
    assert "QueueTimeout: task 'train': partition 'p' has no 3 rows with columns ['x']" in error


def test_what_a_stream_cannot_do_is_refused() -> None:
    status, error = error_of(BEGIN + "stream(should_check_consumption_status=True)")
    assert (status, "ValueError: should_check_consumption_status=True" in error) == (1, True)
