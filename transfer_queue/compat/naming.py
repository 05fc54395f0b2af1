"""Keys and tags as programs pass them: looked at before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

KEYLESS = "\x00row "  # begins the keys of rows that were put without one


def checked_keys(keys: Any) -> list[str]:
    """A str is one key. Raises TypeError or ValueError unless there is one at least, and each is a str."""
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, list):
        raise TypeError(f"keys is a {type(keys).__name__}: pass a str or a list of str")
    if not keys:
        raise ValueError("keys=[]: name at least one key; nothing was asked")
    if not all(isinstance(key, str) for key in keys):
        at, key = next((at, key) for at, key in enumerate(keys) if not isinstance(key, str))
        raise TypeError(f"keys[{at}]={key!r} is a {type(key).__name__}: a key is a str; nothing was asked")
    return keys


def checked_numbers(numbers: Any) -> list[int]:
    """An int is one number. Raises TypeError or ValueError unless there is one at least, and each is an int."""
    if isinstance(numbers, int) and not isinstance(numbers, bool):
        return [numbers]
    if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
        raise TypeError(f"global_indexes={str(numbers)[:64]}: pass an int or a list of int; nothing was asked")
    if not numbers:
        raise ValueError("global_indexes=[]: name at least one row; nothing was asked")
    return numbers


def checked_tags(tags: Sequence[Any] | None, rows: int) -> None:
    """Raises ValueError or TypeError unless each row has a dict."""
    if tags is None:
        return
    if len(tags) != rows:
        raise ValueError(f"{len(tags)} tags for {rows} keys: give each key one, {{}} for none; nothing was written")
    for at, tag in enumerate(tags):
        if not isinstance(tag, dict):
            raise TypeError(f"tags[{at}] is a {type(tag).__name__}: a tag is a dict; nothing was written")
