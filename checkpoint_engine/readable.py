"""Torch views of memory that may only be read: a slot of another process, mapped here.

Torch has no read-only tensors. An operation in place on such a view ends the process with SIGSEGV: these are everybody's weights. Copy first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class _Claim:
    """Memory that is said to be writable: torch warns of any other, and copies nothing either way. Keeps the array that owns it."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: np.ndarray) -> None:
        described = owner.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}
        self._owner = owner


def readable(array: np.ndarray) -> torch.Tensor:
    """uint8 [array.size] over the same memory, which lives as long as the tensor."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Claim(array)))
