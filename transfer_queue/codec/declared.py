"""What the declaration of a column says about its bytes."""

from __future__ import annotations

import math

from transfer_queue.dtypes import storage
from transfer_queue.messages.schema import Column

BYTES_KINDS = ("blob", "text", "object")  # rows of bytes: of any length, none of them a number
_MOST_BYTES = 1 << 40  # of one value: beyond it a shape is a slip, and sums of lengths could leave int64


def value_elements(column: Column) -> int:
    """Elements of the storage dtype in one value: a scalar row holds one value, a per_token row any number, the other kinds any number of bytes."""
    return math.prod(column.shape)


def value_bytes(column: Column) -> int:
    return value_elements(column) * storage(column.dtype).itemsize


def check_declared(column: Column) -> None:
    """Raises ValueError naming the column when its dtype, kind and shape do not fit together."""
    where = f"column {column.name!r}"
    try:
        storage(column.dtype)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if column.kind in BYTES_KINDS:
        if column.dtype != "uint8" or column.shape:
            raise ValueError(
                f"{where} is {column.kind} with dtype={column.dtype!r} and shape={list(column.shape)}: its rows are bytes of any length; write "
                "dtype 'uint8' and no shape, or another kind"
            )
        return
    least = 1 if column.kind == "per_token" else 0
    if any(size < least for size in column.shape) or value_bytes(column) > _MOST_BYTES:
        raise ValueError(
            f"{where} is {column.kind} with shape={list(column.shape)}: sizes are >= {least} (values without bytes cannot be counted in a run) and a "
            f"value takes at most {_MOST_BYTES} bytes; it could not be read back; mend the shape"
        )
