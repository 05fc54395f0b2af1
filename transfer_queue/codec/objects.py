"""Rows of nested Python data as MessagePack, never pickle: what is read is equal to what was put, types included, and what would not be is refused.

None, bool, int of 64 bits, float, str, bytes, list, tuple, dict, numpy arrays and numbers, torch tensors. MessagePack knows no tuple and no array:
they are extensions. Arrays and tensors come back as copies, on the host and without a gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from transfer_queue.codec.numbers import plain
from transfer_queue.codec.packed import Packed
from transfer_queue.codec.text import joined
from transfer_queue.codec.torch_bits import is_tensor, to_torch
from transfer_queue.dtypes import BITS, storage

TUPLE, ARRAY, NUMBER, TENSOR = 1, 2, 3, 4  # codes of the extensions
_LEAVES = frozenset({type(None), bool, int, float, str, bytes})
_Header = tuple[str, tuple[int, ...], memoryview]  # dtype, shape, bits


def pack_objects(name: str, rows: Sequence[Any]) -> Packed:
    """Raises TypeError or ValueError naming column and row for what would not come back as it is."""
    frames = []
    for row, value in enumerate(rows):
        try:
            frames.append(_encode(_portable(value)))
        except TypeError as error:
            raise TypeError(f"column {name!r}, row {row}: {error}") from None
        except RecursionError:
            raise ValueError(f"column {name!r}, row {row} is nested too deeply, or contains itself: pass a flatter value") from None
        except (ValueError, OverflowError) as error:
            raise ValueError(f"column {name!r}, row {row}: {error}; pass such a value as str or bytes") from None
    return joined(frames, "object")


def unpack_objects(name: str, values: np.ndarray, offsets: np.ndarray) -> list[Any]:
    """A row without bytes, which no value has, is None."""
    view, marks = values.data, offsets.tolist()
    try:
        return [_decode(view[start:stop]) if stop > start else None for start, stop in itertools.pairwise(marks)]
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"column {name!r} holds bytes that are no object: {error}; its writer used another kind or a newer release") from error


def looked_at(data: bytes) -> Any:
    """The value of one row, for who hands it on unread: tensors are looked at and come back as arrays, without torch. Raises ValueError for what
    no reader could unpack."""
    try:
        return _look(data)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{error}") from None


def _portable(value: Any) -> Any:
    """`value` with tuples, arrays and tensors as extensions. Exact types: a subclass would come back as its base. Leaves, the most, cost no call."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if kind is list:
        return [item if type(item) in _LEAVES else _portable(item) for item in value]
    if kind is dict:
        return {key if type(key) in _LEAVES else _key(key): item if type(item) in _LEAVES else _portable(item) for key, item in value.items()}
    if kind is tuple:
        return msgspec.msgpack.Ext(TUPLE, _encode([_portable(item) for item in value]))
    if isinstance(value, np.ndarray | np.generic) or is_tensor(value):
        return _array(value)
    raise _strange(value, "values")


def _key(key: Any) -> Any:
    """Keys are leaves, or tuples of them: MessagePack's arrays, which come back as tuples there."""
    if type(key) is tuple:
        return tuple(_key(part) for part in key)
    if type(key) not in _LEAVES:
        raise _strange(key, "keys")
    return key


def _strange(value: Any, what: str) -> TypeError:
    kind = type(value)
    return TypeError(
        f"a {kind.__module__}.{kind.__qualname__} would not come back as it is: {what} are None, bool, int, float, str, bytes, tuple"
        f"{', list, dict, numpy arrays and torch tensors' if what == 'values' else ''}; convert it, e.g. with msgspec.to_builtins or dict(value)"
    )


def _array(value: Any) -> msgspec.msgpack.Ext:
    bits, dtype = plain("value", value)
    code = TENSOR if is_tensor(value) else NUMBER if isinstance(value, np.generic) else ARRAY
    if code != TENSOR and dtype in BITS:
        raise TypeError(f"an array of {dtype} would come back as the bits of it: pass a torch tensor")
    return msgspec.msgpack.Ext(code, _encode((dtype, bits.shape, bits.reshape(-1).view(np.uint8).data)))


def _restore(code: int, data: memoryview) -> Any:
    if code == TUPLE:
        return tuple(_decode(data))
    values, dtype = _bits(code, data)
    values = values.copy()  # its own memory: aligned, writable, and not the reader's mapping
    if code == TENSOR:
        return to_torch(values, dtype)
    return values[()] if code == NUMBER else values


def _looked_at(code: int, data: memoryview) -> Any:
    return tuple(_look(data)) if code == TUPLE else _bits(code, data)[0]


def _bits(code: int, data: memoryview) -> tuple[np.ndarray, str]:
    """A view of them in their shape, and the name of their dtype."""
    if code not in (ARRAY, NUMBER, TENSOR):
        raise ValueError(f"extension {code} of MessagePack is none of ours ({TUPLE} to {TENSOR})")
    dtype, shape, bits = _headers.decode(data)
    return np.frombuffer(bits, dtype=storage(dtype)).reshape(shape), dtype


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=_restore).decode
_look = msgspec.msgpack.Decoder(ext_hook=_looked_at).decode
_headers = msgspec.msgpack.Decoder(_Header)
