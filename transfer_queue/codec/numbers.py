"""Arrays, tensors and runs as rows of numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from transfer_queue.codec.packed import Packed, offsets_of
from transfer_queue.codec.torch_bits import bits_of, is_nested, is_tensor, jagged_of_nested
from transfer_queue.columns import Jagged
from transfer_queue.dtypes import BITS, name_of, refusal
from transfer_queue.messages.base import Kind


def pack_numbers(name: str, column: Any, kind: Kind | None = None) -> Packed:
    """An array or tensor: [R] is R values, [R, …] is values of that shape (kind "scalar") or dense runs of them ("per_token"); 0-d is one row.

    `kind` None: "scalar" for at most one axis, else "per_token". No copy, unless the input is strided or big-endian.
    """
    if is_tensor(column) and is_nested(column):
        return pack_runs(name, jagged_of_nested(name, column))
    values, dtype = plain(name, column)
    if values.ndim == 0:
        values = values.reshape(1)
    runs = values.ndim > 1 and kind != "scalar"  # a per_token column in one axis stays what it is: the check against the schema names the mistake
    shape = values.shape[2:] if runs else values.shape[1:]
    if runs and 0 in shape:
        raise ValueError(f"column {name!r} has shape {list(values.shape)}: runs of values without elements have no length to travel; drop that axis")
    offsets = np.arange(len(values) + 1, dtype=np.int64) * math.prod(values.shape[1:])
    return Packed(values.reshape(-1), offsets, "per_token" if runs else "scalar", dtype, shape)


def pack_runs(name: str, column: Jagged) -> Packed:
    values, dtype = plain(name, column.values)
    if column.dtype in BITS:
        if values.dtype != BITS[column.dtype]:
            raise TypeError(f"column {name!r} is called {column.dtype}, whose bits are {BITS[column.dtype]}, but holds {values.dtype}: pass the bits")
        dtype = column.dtype
    shape = values.shape[1:]
    if 0 in shape:
        raise ValueError(f"column {name!r} has runs of shape {list(shape)}: without elements they have no length to travel; drop that axis")
    offsets = column.offsets.astype(np.int64, copy=False)
    return Packed(values.reshape(-1), offsets * math.prod(shape) if shape else offsets, "per_token", dtype, shape)


def plain(name: str, column: Any) -> tuple[np.ndarray, str]:
    """Contiguous little-endian values in their storage dtype, in the shape of `column`, and the schema's name of their dtype."""
    if is_tensor(column):
        return bits_of(name, column)
    if not isinstance(column, np.ndarray | np.generic):
        kind = f"{type(column).__module__}.{type(column).__qualname__}"
        raise TypeError(f"column {name!r} is a {kind}: pass an ndarray, a torch tensor, a Jagged, or a list (of bytes, str or objects)")
    if isinstance(column, np.ma.MaskedArray):
        column = _unmasked(name, column)
    found = column.dtype
    called, why = name_of(found), refusal(found)
    if why is not None:
        raise TypeError(f"column {name!r} has dtype {found}: {why}")
    values = np.ascontiguousarray(column).reshape(column.shape)  # ascontiguousarray makes 0-d into 1-d
    if called in BITS:  # a numpy extension type
        values = values.view(BITS[called])
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    return values, called


def unpack_scalars(values: np.ndarray, shape: tuple[int, ...], absent: np.ndarray) -> np.ndarray:
    """[R, *shape]; where rows are absent, a masked array: absent is never zero."""
    if not absent.any():
        return values.reshape(len(absent), *shape)
    filled = np.zeros((len(absent), *shape), dtype=values.dtype)
    filled[~absent] = values.reshape(-1, *shape) if 0 not in shape else 0
    mask = np.broadcast_to(absent.reshape(-1, *(1 for _ in shape)), filled.shape)
    return np.ma.masked_array(filled, mask=mask)


def unpack_runs(values: np.ndarray, lengths: np.ndarray, shape: tuple[int, ...], dtype: str) -> Jagged:
    width = math.prod(shape)
    return Jagged(values.reshape(-1, *shape), offsets_of(lengths // width if shape else lengths), dtype)


def _unmasked(name: str, column: np.ma.MaskedArray) -> np.ndarray:
    mask = np.ma.getmaskarray(column)
    if mask.any():
        rows = np.flatnonzero(mask.reshape(len(mask), -1).any(axis=1) if mask.ndim else mask.reshape(1))
        raise ValueError(
            f"column {name!r} is masked in rows {rows.tolist()[:8]}: a missing value is never written as the number behind the mask; leave these "
            "rows out, or fill them knowingly with .filled(value)"
        )
    return np.asarray(column.data)
