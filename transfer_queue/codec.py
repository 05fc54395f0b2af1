"""Columns to frames and back: bits are copied or viewed, never converted.

numpy has no bfloat16 and no float8: their bits travel as uint16 and uint8 under the name the topic's schema gives, and `to_torch` reads them back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transfer_queue.columns import Jagged

if TYPE_CHECKING:
    import torch

BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e4m3fnuz": "uint8", "float8_e5m2fnuz": "uint8"}
"""Names that numpy lacks → the numpy dtype that holds their bits."""

Column = np.ndarray | Jagged | list[bytes]


@functools.cache
def storage(dtype: str) -> np.dtype:
    """The numpy dtype that a column of this schema dtype is stored in. Raises ValueError for one that is no number."""
    try:
        found = np.dtype(BITS.get(dtype, dtype))
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "biufc":
        known = f"numpy's bool, int, float and complex types and {sorted(BITS)}"
        raise ValueError(f"dtype={dtype!r} is no number: columns hold {known}; use a blob for anything else")
    return found


@dataclass(frozen=True)
class Packed:
    """R rows of one column in one buffer: row r is `values[offsets[r]:offsets[r + 1]]`."""

    values: np.ndarray  # 1-d, contiguous, little-endian
    offsets: np.ndarray  # [R + 1] int64, elements
    kind: str  # "scalar" | "per_token" | "blob"
    dtype: str  # schema name

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, order: np.ndarray) -> Packed:
        """Rows in another order (one copy)."""
        lengths = np.diff(self.offsets)[order]
        return Packed(self.values[row_index(self.offsets[:-1][order], lengths)], offsets_of(lengths), self.kind, self.dtype)


def pack(name: str, column: Any) -> Packed:
    """Accepts an ndarray or a torch tensor [R] (scalar; 0-d is one row) or [R, T] (R runs of T), a Jagged, or a list of bytes.

    No copy, unless the input is strided or big-endian. Raises TypeError or ValueError naming the column.
    """
    if isinstance(column, list):
        return _pack_blobs(name, column)
    if isinstance(column, Jagged):
        values, dtype = _plain(name, column.values)
        return Packed(values, column.offsets.astype(np.int64, copy=False), "per_token", dtype)
    values, dtype = _plain(name, column)
    if values.ndim > 2:
        raise ValueError(f"column {name!r} has shape {values.shape}: a column is [rows] or [rows, values]; flatten the last axes")
    rows = values.shape[0] if values.ndim else 1
    width = values.shape[1] if values.ndim == 2 else 1
    return Packed(values.reshape(-1), np.arange(rows + 1, dtype=np.int64) * width, "per_token" if values.ndim == 2 else "scalar", dtype)


def unpack(kind: str, dtype: str, values: np.ndarray, lengths: np.ndarray) -> Column:
    """`values` in the storage dtype, row after row, R rows of `lengths` elements → the column as its kind says."""
    if kind == "scalar":
        return values
    offsets = offsets_of(lengths)
    if kind == "per_token":
        return Jagged(values, offsets)
    data = values.tobytes()
    return [data[start:stop] for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def to_torch(values: np.ndarray, dtype: str) -> torch.Tensor:
    """A tensor of the schema dtype `dtype` over the bits of `values` (no copy; a read-only or misaligned array is copied, torch cannot hold one)."""
    import torch

    wanted = storage(dtype)
    if values.dtype != wanted:
        raise TypeError(f"{dtype} is stored as {wanted}, got {values.dtype}: the values were converted on the way; pass what `read` returned")
    usable = np.require(values, requirements=["C", "A", "W"])
    tensor = torch.from_numpy(usable.reshape(values.shape))
    return tensor.view(getattr(torch, dtype)) if dtype in BITS else tensor


def _plain(name: str, column: Any) -> tuple[np.ndarray, str]:
    """Contiguous little-endian values and their schema dtype."""
    if not isinstance(column, np.ndarray | np.generic):
        column, dtype = _from_torch(name, column)
    else:
        dtype = column.dtype.name
    values = np.ascontiguousarray(column).reshape(column.shape)  # ascontiguousarray makes 0-d into 1-d
    if dtype in BITS:  # a numpy extension type, or bits that torch named
        values = values.view(BITS[dtype])
    elif values.dtype.kind not in "biufc":
        raise TypeError(f"column {name!r} has dtype {values.dtype}: columns hold numbers; encode text as a list of bytes (kind blob)")
    if values.dtype.byteorder == ">":
        values = values.astype(values.dtype.newbyteorder("<"))
    return values, dtype


def _from_torch(name: str, column: Any) -> tuple[np.ndarray, str]:
    kind = f"{type(column).__module__}.{type(column).__qualname__}"
    if not hasattr(column, "untyped_storage"):  # a torch tensor, without importing torch for callers who have none
        raise TypeError(f"column {name!r} is a {kind}: pass an ndarray, a torch tensor, a Jagged, or a list of bytes")
    tensor = column.detach().cpu().contiguous()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype in BITS:
        import torch

        tensor = tensor.view(getattr(torch, BITS[dtype]))
    return tensor.numpy(), dtype


def _pack_blobs(name: str, blobs: list[Any]) -> Packed:
    if not all(isinstance(blob, bytes | bytearray | memoryview) for blob in blobs):
        raise TypeError(f"column {name!r} is a list, so every row must be bytes; pass an ndarray for scalars and Jagged.of(runs, dtype) for runs")
    return Packed(np.frombuffer(b"".join(blobs), dtype=np.uint8), offsets_of([len(blob) for blob in blobs]), "blob", "uint8")


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def row_index(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Positions of the elements of runs that begin at `starts`, run after run."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
