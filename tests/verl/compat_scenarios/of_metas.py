"""What a program holds of rows: KVBatchMeta and BatchMeta."""

from __future__ import annotations

import pickle
from typing import Any

from told import KEYS, batch, kind, scenario


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
        *(selected, parts, joined, back, turned, [numbers[each] for each in turned.global_indexes], union),
        *(meta.chunk(4)[3], meta[1], meta[1:], meta[-1]),
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
