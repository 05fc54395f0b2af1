"""Memory that may only be read, such that torch takes it without a warning and without a copy.

Torch has no read-only tensors. An operation in place on a tensor over such memory ends the process with SIGSEGV.
"""

from __future__ import annotations

import numpy as np


class _Claim:
    """Memory that is said to be writable: torch warns of any other, and copies nothing either way. Keeps the array that owns it."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: np.ndarray) -> None:
        described = owner.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}
        self._owner = owner


def claimed(array: np.ndarray) -> np.ndarray:
    """The same memory, dtype, shape and strides; it lives as long as what is returned."""
    return array if array.flags.writeable else np.asarray(_Claim(array))
