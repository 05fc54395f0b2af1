"""Arrays over memory that somebody wants to hear about: when the last array or tensor over it is collected, it may be used for something else.

numpy keeps the object that exports memory alive as the base of every view, and torch keeps the numpy array: one weak reference tells of all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np


class _Exporter:
    """Owns nothing but a reference to `memory`: whatever keeps that mapped or allocated stays as long as this does."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__


def export(memory: np.ndarray, ended: Callable[..., Any], *arguments: Any) -> np.ndarray:
    """An array over `memory` (no copy; read-only where that is). `ended(*arguments)` is called once when nothing refers to it any more.

    It is called by whichever thread drops the last reference, also in the middle of a garbage collection: it must neither wait nor raise.
    At the end of the process it is not called.
    """
    exporter = _Exporter(memory)
    weakref.finalize(exporter, ended, *arguments).atexit = False
    return np.asarray(exporter)
