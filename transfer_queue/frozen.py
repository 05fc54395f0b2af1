"""Records with arrays in them as bytes, and back: msgpack, with a number in place of each array; the arrays follow as they lie in memory."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from transfer_queue.messages import Record

R = TypeVar("R", bound=Record)


class Shape(Record, frozen=True, array_like=True):
    """Of one array."""

    dtype: str
    shape: tuple[int, ...]


class Packed(NamedTuple):
    record: bytes
    shapes: list[Shape]
    arrays: list[np.ndarray]


def pack(record: Record) -> Packed:
    arrays: list[np.ndarray] = []

    def number(value: Any) -> int:
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"{type(value).__name__} has no place in a snapshot")
        arrays.append(np.ascontiguousarray(value))
        return len(arrays) - 1

    encoded = msgspec.msgpack.encode(record, enc_hook=number)
    return Packed(encoded, [Shape(array.dtype.str, array.shape) for array in arrays], arrays)


def unpack(kind: type[R], record: bytes | memoryview, shapes: list[Shape], buffers: list[memoryview]) -> R:
    """Arrays are read-only views of `buffers`. Raises msgspec.DecodeError or ValueError for what `pack` has not made of such a record."""

    def array(wanted: type, value: Any) -> np.ndarray:
        if wanted is not np.ndarray:
            raise NotImplementedError(wanted)
        shape = shapes[value]
        return np.frombuffer(buffers[value], dtype=shape.dtype).reshape(shape.shape)

    return msgspec.msgpack.decode(record, type=kind, dec_hook=array)


class _Whole(Record, frozen=True):
    record: bytes
    shapes: list[Shape]
    arrays: list[bytes]


def to_bytes(record: Record) -> bytes:
    """All of it in one piece. Raises OverflowError for an array of 4 GiB or more."""
    packed = pack(record)
    arrays = [array.reshape(-1).view(np.uint8).data for array in packed.arrays]
    return msgspec.msgpack.encode({"record": packed.record, "shapes": packed.shapes, "arrays": arrays})


def from_bytes(kind: type[R], data: bytes) -> R:
    """Raises msgspec.DecodeError or ValueError for what is none."""
    whole = msgspec.msgpack.decode(data, type=_Whole)
    return unpack(kind, whole.record, whole.shapes, [memoryview(array) for array in whole.arrays])
