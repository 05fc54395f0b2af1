"""verl's own bridge between its workers and the queue, `tqbridge`, over our package: nothing of verl is changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.verl.children import said

pytestmark = [pytest.mark.verl, pytest.mark.timeout(200)]

BEGIN = """
import asyncio, json
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
import transfer_queue as tq
from verl.utils import tensordict_utils as tu, transferqueue_utils as bridge
assert bridge.tq is tq and "compat" in tq.KVBatchMeta.__module__

tq.init()
keys = ["u_0_0", "u_1_0", "v_0_0"]
runs = torch.nested.as_nested_tensor([torch.arange(2), torch.arange(3), torch.arange(1)], layout=torch.jagged)
fields = TensorDict({"input_ids": runs, "uid": NonTensorStack("u", "u", "v"), "score": torch.arange(3.0)}, batch_size=[3])
meta = tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=[{"status": "finished", "seq_len": n} for n in (2, 3, 1)])

def compute(self, data):
    seen.append((sorted(data.keys()), list(data.batch_size), data["input_ids"].is_nested, tu.get_non_tensor_data(data, "temperature", None)))
    padded = data["input_ids"].to_padded_tensor(0)
    entropy = torch.nested.as_nested_tensor([row.float() + 0.5 for row in data["input_ids"].unbind()], layout=torch.jagged)
    return tu.get_tensordict({"entropy": entropy, "sums": padded.sum(dim=1)}, non_tensor_dict={"metrics": {"loss": 0.25}})

seen = []
"""
END = "\nprint(json.dumps(found)); tq.close()"


def told(code: str) -> Any:
    return json.loads(said(BEGIN + code + END, limit_s=120))


def test_a_worker_reads_a_batch_by_its_keys_and_writes_its_output_back() -> None:
    found = told("""
meta.extra_info["temperature"] = 0.7
meta.reorder([2, 0, 1])
out = bridge.tqbridge()(compute)(None, meta)
back = tq.kv_batch_get(keys=out.keys, partition_id=out.partition_id, select_fields=["entropy", "sums", "nobody"])
found = [type(out).__name__, out.keys, out.tags, out.partition_id, out.fields, out.extra_info, seen,
         [row.tolist() for row in back["entropy"].unbind()], back["sums"].tolist(), sorted(back.keys())]
""")
    tags = [{"status": "finished", "seq_len": length} for length in (1, 2, 3)]
    fields = ["entropy", "input_ids", "score", "sums", "uid"]
    assert found[:6] == ["KVBatchMeta", ["v_0_0", "u_0_0", "u_1_0"], tags, "train", fields, {"metrics": {"loss": 0.25}}]
    assert found[6] == [[["input_ids", "score", "temperature", "uid"], [3], True, 0.7]]
    assert found[7:] == [[[0.5], [0.5, 1.5], [0.5, 1.5, 2.5]], [0, 1, 3], ["entropy", "sums"]]


def test_a_coroutine_of_a_worker_does_the_same_on_a_loop_that_runs() -> None:
    found = told("""
async def later(self, data):
    return compute(self, data)

async def main():
    meta.fields = ["input_ids"]
    return await bridge.tqbridge()(later)(None, data=meta)

out = asyncio.run(main())
found = [out.keys, out.fields, seen, tq.kv_list("train")["train"]["u_0_0"]]
""")
    assert found[:2] == [["u_0_0", "u_1_0", "v_0_0"], ["entropy", "input_ids", "sums"]]
    assert found[2:] == [[[["input_ids"], [3], True, None]], {"status": "finished", "seq_len": 2}]


def test_batches_are_split_over_ranks_and_what_they_wrote_is_one_batch_again() -> None:
    """As the driver does: one batch of keys a call, chunked, and what comes back concatenated; a rank that does not collect gives an empty one."""
    found = told("""
import pickle
whole = bridge.kv_batch_meta2batch_meta(meta)
parts = [pickle.loads(pickle.dumps(part)) for part in whole.chunk(chunks=2)]
worker = bridge.tqbridge()(compute)
outs = [worker(None, part) for part in parts]
empty = bridge._postprocess_common(TensorDict({}, batch_size=[0]), True, False)
back = bridge.batch_meta2kv_batch_meta(tq.BatchMeta.concat(outs))

found = [[part.size for part in parts], back.keys, back.fields, back.extra_info, empty.size, tq.kv_batch_get(keys, "train")["sums"].tolist()]
""")
    assert found == [[2, 1], ["u_0_0", "u_1_0", "v_0_0"], ["entropy", "input_ids", "score", "sums", "uid"], {"metrics": {"loss": 0.25}}, 0, [1, 3, 0]]
