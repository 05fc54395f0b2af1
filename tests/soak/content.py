"""What a row holds, as a function of its key, so that whoever reads a row knows every byte that was put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transfer_queue.columns import Jagged

Key = tuple[int, int, int, int]  # producer's number, its life, the group's serial number there (of ASKED: -1, 0, gid), row
ROWS = 2  # of a group
SHARED = -1  # "row" of what a group's rows have in common
LARGE_EVERY, LARGE_BYTES = 16, 300_000  # such a group goes straight into the shard's memory, the others as messages
SMALL_BYTES, MOST_TOKENS = 4096, 400


class Content(NamedTuple):
    tokens: np.ndarray  # [T] int32
    blob: bytes
    note: str


def content(key: Key) -> Content:
    rng = _rng(key)
    tokens = rng.integers(-(2**31), 2**31, int(rng.integers(0, MOST_TOKENS)), dtype="int32")
    large = key[2] % LARGE_EVERY == 0
    return Content(tokens, rng.bytes(LARGE_BYTES if large else int(rng.integers(0, SMALL_BYTES))), f"row {key} ü")


def prompt(key: Key) -> np.ndarray:
    """[T] int32, of the group of `key`."""
    rng = _rng((*key[:3], SHARED))
    return rng.integers(0, 2**31, int(rng.integers(1, MOST_TOKENS)), dtype="int32")


def score(key: Key) -> float:
    return key[2] + key[3] / 8


def columns(keys: Sequence[Key]) -> dict[str, Any]:
    """What the producer of these rows puts."""
    rows = [content(key) for key in keys]
    return {
        "key": np.array(keys, dtype="int64"),
        "tokens": Jagged.of([row.tokens for row in rows], "int32"),
        "blob": [row.blob for row in rows],
        "note": [row.note for row in rows],
    }


def prompts(groups: Sequence[Key]) -> dict[str, Any]:
    """The shared column, one row a group."""
    return {"prompt": Jagged.of([prompt(key) for key in groups], "int32")}


def keys_in(read: Mapping[str, Any]) -> list[Key]:
    return [tuple(key) for key in read["key"].tolist()]


def differences(read: Mapping[str, Any]) -> list[str]:
    """What is not what was put under the keys that the rows say they have. Nothing for a column that was not read."""
    wrong: list[str] = []
    for at, key in enumerate(keys_in(read)):
        if not _possible(key):
            wrong.append(f"row {at} says that it is {key}, which nobody puts")
            continue
        made = content(key)
        same = {
            "tokens": np.array_equal(read["tokens"][at], made.tokens),
            "blob": read["blob"][at] == made.blob,
            "note": read["note"][at] == made.note,
            "prompt": np.array_equal(read["prompt"][at], prompt(key)),
            "score": "score" not in read or read["score"][at] == score(key),
        }
        wrong += [f"{name} of {key} is not what was put" for name, equal in same.items() if not equal]
    return wrong


def _possible(key: Key) -> bool:
    return min(key) >= -1 and 0 <= key[3] < ROWS


def _rng(key: Key) -> np.random.Generator:
    return np.random.default_rng([part + 1 for part in key])
