"""Which questions are whose: a question belongs to exactly one split, by its own text, so that no two splits can ever share one."""

from __future__ import annotations

from typing import Literal

import xxhash

Split = Literal["train", "warm_start", "validation", "held_out"]

SHARES: dict[Split, int] = {"train": 45, "warm_start": 30, "validation": 10, "held_out": 15}  # of 100

SALT = 199  # chosen so that half of the ten questions of one number are taught and half are trained on (recipes/quickstart/notes.md)


def split_of(question: str) -> Split:
    """The split of a question: a pure function of its text (xxh3 of salt and text), the same on every machine and in every run."""
    place = xxhash.xxh3_64_intdigest(f"{SALT}/{question}".encode()) % 100
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    raise AssertionError(f"shares {SHARES} must sum to 100")
