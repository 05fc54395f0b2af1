"""Bytes that were read, as the column that its declaration says."""

from __future__ import annotations

import numpy as np

from transfer_queue.codec.declared import BYTES_KINDS, value_elements
from transfer_queue.codec.numbers import unpack_runs, unpack_scalars
from transfer_queue.codec.objects import unpack_objects
from transfer_queue.codec.packed import Column, offsets_of
from transfer_queue.codec.text import unpack_blobs, unpack_text
from transfer_queue.messages import schema


def unpack(column: schema.Column, values: np.ndarray, lengths: np.ndarray, absent: np.ndarray | None = None) -> Column:
    """`values`: 1-d, contiguous, in the storage dtype, row after row; `lengths` [R] int64, in elements of them. Arrays are views of `values`.

    scalar → ndarray [R, *shape]; per_token → Jagged with values [N, *shape]; blob → list[bytes]; text → list[str]; object → list.
    `absent` [R] bool: rows without a value, of length 0: scalar → a masked array, per_token → an empty run, blob → b"", text and object → None.
    Raises ValueError naming the column when the lengths cannot be those of its rows.
    """
    absent = np.zeros(len(lengths), dtype=bool) if absent is None else absent
    _check(column, values, lengths, absent)
    if column.kind == "scalar":
        return unpack_scalars(values, column.shape, absent)
    if column.kind == "per_token":
        return unpack_runs(values, lengths, column.shape, column.dtype)
    offsets = offsets_of(lengths)
    if column.kind == "blob":
        return unpack_blobs(values, offsets)
    if column.kind == "object":
        return unpack_objects(column.name, values, offsets)
    texts = unpack_text(column.name, values, offsets)
    return texts if not absent.any() else [None if gone else text for text, gone in zip(texts, absent.tolist(), strict=True)]


def _check(column: schema.Column, values: np.ndarray, lengths: np.ndarray, absent: np.ndarray) -> None:
    if int(lengths.sum()) != len(values):
        raise ValueError(f"column {column.name!r}: {len(values)} elements came for rows of {int(lengths.sum())} in all: the read was cut")
    if column.kind in BYTES_KINDS:
        return
    width = value_elements(column)
    wrong = (lengths != np.where(absent, 0, width)) if column.kind == "scalar" else lengths % width != 0
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"column {column.name!r} is {column.kind} with values of {width} elements (shape={list(column.shape)}), but row {row} holds "
            f"{int(lengths[row])}: written as another kind or shape; writer and reader must share one schema"
        )
