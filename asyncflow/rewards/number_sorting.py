"""The score of a compact answer to a sorting question, by reasoning-gym's own scorer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

SCALE = 10  # the dataset's scorer forgives each number an error of 1, which for single digits would let wrong answers pass; tenfold, it does not


class SortingItem(msgspec.Struct, frozen=True):
    """Metadata of an item, as reasoning-gym wrote it: what travels in the column `item`."""

    original_numbers: list[str]
    sorted_numbers: list[str]


class SortingScorer:
    """`score_answer` of the dataset, on the item and the answer with every number times `SCALE`: only exact answers count."""

    def __init__(self, score_answer: Callable[[str, dict[str, Any]], float]) -> None:
        self._score_answer = score_answer

    def __call__(self, item: bytes, answer: str | None) -> float:
        """1.0 for the sorted list, 0.0 for anything else (None: no finished answer). Raises ValueError for bytes that are no item."""
        try:
            record = msgspec.json.decode(item, type=SortingItem)
        except msgspec.DecodeError as error:
            raise ValueError(f"item {item[:40]!r} is no sorting item ({error}) and cannot be scored; source and scorer must use one task") from error
        if answer is None:
            return 0.0
        numbers = answer.split(",")
        if not all(len(number) == 1 and number.isdecimal() for number in numbers):
            return 0.0
        entry = {"answer": _listed(record.sorted_numbers), "metadata": {"direction": "ascending"}}
        return float(self._score_answer(_listed(numbers), entry))


def _listed(numbers: list[str]) -> str:
    """In the dataset's format: "['30.0', '40.0']"."""
    return str([str(float(number) * SCALE) for number in numbers])
