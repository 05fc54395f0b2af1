"""What a batch carries for itself, of batches that become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def merged(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All entries. Raises ValueError for one that has different values: nobody can say whose counts."""
    found: dict[str, Any] = {}
    for info in infos:
        for key, value in info.items():
            if key in found and not _same(found[key], value):
                raise ValueError(f"extra_info[{key!r}] is {str(found[key])[:64]} and {str(value)[:64]}: make them one before, or leave it out")
            found.setdefault(key, value)
    return found


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if hasattr(one, "untyped_storage"):
        import torch

        return torch.equal(one, other)
    try:
        return bool(one == other)
    except Exception:  # a value of any type, whose own comparison fails: not known to be the same
        return False
