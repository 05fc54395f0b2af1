"""Give freed memory back to the system: glibc keeps the pages of small freed blocks for ever unless told otherwise (FAULTS 12)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

TRIM_BYTES = 32 << 20  # a trim walks the heap: worth it only for so many freed bytes


class Trimmer:
    def __init__(self, trim_bytes: int = TRIM_BYTES) -> None:
        self.trim_bytes = trim_bytes
        self.pending_bytes = 0
        self._trim = _malloc_trim()

    def freed(self, count: int) -> None:
        self.pending_bytes += count

    def idle(self) -> None:
        """Called between bursts of requests."""
        if self.pending_bytes >= self.trim_bytes:
            self.pending_bytes = 0
            if self._trim is not None:
                self._trim(0)


def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None where the C library has none (musl, macOS), which then decides itself."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim
