"""What may be a name, and how large a request may be: looked at before anything is stored, for what cannot travel would leave its bytes behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from transfer_queue import messages as m
from transfer_queue.keyed.packing import Typed
from transfer_queue.messages.keyed import MOST_MESSAGE_BYTES, MOST_NAME, MOST_ROWS

_PLACE, _WHICH, _HEAD = 32, 8, 16  # bytes of a cell's place, of its type's number; most that stand before a str, a tag, a type
_RULE = f"a name is a str of 1 to {MOST_NAME} characters that UTF-8 can say"


def name_of(what: str, name: Any) -> str:
    """An exact str. Raises TypeError or ValueError for what is no name."""
    if type(name) is not str:
        if not isinstance(name, np.str_):
            raise TypeError(f"{what}={name!r} is a {type(name).__name__}: {_RULE}; nothing was asked. Pass str(…) of it")
        name = str(name)
    if not 1 <= len(name) <= MOST_NAME:
        raise ValueError(f"{what}={name[:64]!r} has {len(name)} characters: {_RULE}; nothing was asked. Choose another")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what}={name[:64]!r} cannot travel, {error.reason}: {_RULE}; nothing was asked. Choose another") from None
    return name


def names_of(what: str, names: Iterable[Any]) -> tuple[str, ...]:
    """The same of many, in their order."""
    if isinstance(names, str | bytes):
        raise TypeError(f"{what}s={names!r} would be a name a character: nothing was asked; pass a list of names")
    return tuple(name_of(what, name) for name in names)


def named(keys: Sequence[str], numbers: Sequence[int] | np.ndarray | None) -> dict[str, Any]:
    """The two fields of a request that name rows. Raises ValueError or TypeError unless one of them does."""
    if isinstance(keys, str) or (numbers is None) != (len(keys) > 0):
        raise ValueError(f"keys={keys!r}, numbers={numbers!r}: name at least one key, in a list, or numbers instead; nothing was asked")
    if numbers is not None and not len(numbers):
        raise ValueError("numbers=[] name no row: nothing was asked; name at least one")
    rows = len(keys) if numbers is None else len(numbers)
    if rows > MOST_ROWS:
        raise ValueError(f"{rows} rows in one request, {MOST_ROWS} are the most: nothing was asked; name fewer at once")
    return {"keys": list(names_of("key", keys)), "numbers": b"" if numbers is None else m.packed(_numbers(numbers))}


def _numbers(numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """[R] int64. Raises TypeError for what only looks like numbers of rows."""
    flag = not isinstance(numbers, np.ndarray) and any(isinstance(each, bool | np.bool_) for each in numbers)
    array = np.ma.asanyarray(numbers) if isinstance(numbers, np.ma.MaskedArray) else np.asarray(numbers)
    found = "bools" if flag else "a mask" if isinstance(array, np.ma.MaskedArray) else f"{array.dtype} of shape {list(array.shape)}"
    if flag or isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in "iu" or array.ndim != 1 or (array > np.iinfo(np.int64).max).any():
        raise TypeError(f"numbers={str(numbers)[:64]} hold {found}: a row has an int64, another number would name another row; nothing was asked. "
                        "Pass those that `put` returned")  # fmt: skip
    return array.astype(np.int64)


def check_size(fields: dict[str, Any], tags: Sequence[bytes], columns: dict[str, Typed], rows: int) -> None:
    """Raises ValueError for a put that its connection would end for."""
    cells = rows * sum(_PLACE + (_WHICH if column.which else 0) for column in columns.values())
    types = sum(4 * _HEAD + _HEAD * len(kind.shape) for column in columns.values() for kind in column.types)
    texts = sum(len(text.encode()) + _HEAD for text in (*fields["keys"], *columns))
    nbytes = cells + types + texts + len(fields["numbers"]) + sum(len(tag) + _HEAD for tag in tags) + 8 * MOST_NAME
    if nbytes > MOST_MESSAGE_BYTES:
        raise ValueError(
            f"{rows} rows of {len(columns)} columns make a request of {nbytes} bytes, {MOST_MESSAGE_BYTES} are the most, for the controller "
            "takes no more; nothing was written. Put fewer rows at once"
        )
