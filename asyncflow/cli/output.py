"""Standard output of a command, whatever it leads to: a pipe whose reader went away, a full disk, a terminal that was closed, another alphabet."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

GONE = (errno.EPIPE, errno.EIO)  # nobody reads any more (`| head`, a closed terminal): no fault of the command


class LastingOutput:
    """Stands in for a text stream. What cannot be written is lost, and `error` keeps the first reason; nothing raises for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self.error = self.error or error
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self.error = self.error or error

    @property
    def lost(self) -> str | None:
        """Why something is missing from the output that somebody may rely on; None: nothing is, or nobody reads it."""
        return None if self.error is None or self.error.errno in GONE else self.error.strerror or str(self.error)

    def discard(self) -> None:
        """What is still held back goes nowhere, so that the interpreter has nothing to fail at when it ends."""
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor holds nothing back
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def lasting_output() -> Iterator[LastingOutput]:
    """`sys.stdout` is lasting while entered. What its alphabet lacks is written as an escape; in UTF-8 odd bytes of a path go out as they are."""
    before = sys.stdout
    if isinstance(before, io.TextIOWrapper):
        utf8 = before.encoding.lower().replace("-", "") == "utf8"
        before.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
    lasting = LastingOutput(before)
    sys.stdout = cast(TextIO, lasting)
    try:
        yield lasting
    finally:
        lasting.flush()
        if lasting.error is not None:
            lasting.discard()
        sys.stdout = before
