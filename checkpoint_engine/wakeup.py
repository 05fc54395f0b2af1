"""A file descriptor that any thread can raise and one thread polls beside its sockets."""

from __future__ import annotations

import os
import threading


class Wakeup:
    def __init__(self) -> None:
        self._fd: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()  # a raise must not hit a descriptor that was closed and given to somebody else

    def fileno(self) -> int:
        """For a poller. Raises ValueError once closed."""
        if self._fd is None:
            raise ValueError("the wakeup is closed: its owner has stopped; nothing can be waited for here")
        return self._fd

    def set(self) -> None:
        """Raise it. Any thread, also after `close`."""
        with self._lock:
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """After the poller said that it was raised."""
        os.eventfd_read(self.fileno())

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
