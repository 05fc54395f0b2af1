"""Names of number types, as a topic's schema and torch spell them, and the numpy types that hold their bits.

numpy has no bfloat16, float8, complex32 and the like: their bits travel as unsigned integers of the same width under the schema's name. They are
viewed, never converted.
"""

from __future__ import annotations

import functools

import numpy as np

_BYTES = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float4_e2m1fn_x2", "bits1x8", "bits2x4", "bits4x2", "bits8"),  # packed: torch, too, counts them by the byte
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),  # torch keeps one a byte
)
BITS = {"bfloat16": "uint16", "bits16": "uint16", "complex32": "uint32"} | dict.fromkeys(_BYTES, "uint8")
"""Names that numpy lacks → the numpy dtype that holds their bits."""

_QUANTISED = "its scale and zero point are no part of its bits, which would be read as other numbers; pass int_repr() and a column for the scale"
REFUSED = dict.fromkeys(("qint8", "quint8", "qint32", "quint4x2", "quint2x4"), _QUANTISED) | {
    "float128": "its width and layout differ from platform to platform; convert to float64",
    "complex256": "its width and layout differ from platform to platform; convert to complex128",
}
"""Types of numbers that do not travel → why, and what to do instead."""

_INSTEAD = {
    "U": "text is kind 'text': pass a list of str, e.g. values.tolist()",
    "T": "text is kind 'text': pass a list of str, e.g. values.tolist()",
    "S": "bytes are kind 'blob': pass a list of bytes, e.g. values.tolist()",
    "O": "Python objects are kind 'object': pass a list, e.g. values.tolist()",
    "M": "dates count in a unit that the schema cannot say: pass values.view('int64') and name the unit in the column's name",
    "m": "durations count in a unit that the schema cannot say: pass values.view('int64') and name the unit in the column's name",
    "V": "a record is several columns: pass values[field], one column a field",
}


@functools.lru_cache(256)  # numpy puts a name together each time, which costs more than the rest of what a small column does
def name_of(found: np.dtype) -> str:
    """As numpy spells it."""
    return found.name


@functools.lru_cache(256)
def refusal(found: np.dtype) -> str | None:
    """Why values of this numpy dtype are no column of numbers, and what is; None when they are one."""
    if found.name in REFUSED:
        return REFUSED[found.name]
    if found.name in BITS or (found.kind in "biufc" and found.isbuiltin != 2):
        return None
    return _INSTEAD[found.kind] if found.isbuiltin != 2 else "only its own package knows its bits: pass them, e.g. values.view('uint8')"


@functools.lru_cache(256)  # bounded: names also come in from others
def storage(dtype: str) -> np.dtype:
    """The numpy dtype that a column of this schema dtype is stored in. Raises ValueError for one that does not travel."""
    if dtype in REFUSED:
        raise ValueError(f"dtype={dtype!r} does not travel: {REFUSED[dtype]}")
    found = _found(BITS.get(dtype, dtype))
    if found is None:
        raise ValueError(f"dtype={dtype!r} is no number: columns hold numpy's bool, int, float and complex types and {sorted(BITS)}")
    why = refusal(found)
    if why is not None:
        raise ValueError(f"dtype={dtype!r} is no number that travels: {why}")
    if not found.isnative:
        raise ValueError(f"dtype={dtype!r} is stored the other way round: bytes travel little-endian and would be read swapped; write {found.name!r}")
    return found


def _found(dtype: str) -> np.dtype | None:
    if not dtype.lstrip("<=>").isidentifier():  # numpy evaluates what looks like a list of types
        return None
    try:
        return np.dtype(dtype)
    except TypeError:
        return None
