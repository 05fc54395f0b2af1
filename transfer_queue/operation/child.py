"""A part of the queue as a process of its own. It says one line when it is up and one when it ends in order; it ends when we do, however we end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

import transfer_queue

HERE = str(Path(transfer_queue.__file__).parents[1])  # found there by whoever started us, so by the child too


class ChildFailed(RuntimeError):
    """It ended, or did not come up in time."""


class Child:
    """`python -m transfer_queue ARGUMENTS`, in a session of its own: Ctrl-C in our terminal is for us alone to answer."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self.said: list[str] = []  # whole lines of its standard output
        path = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "transfer_queue", *arguments, "--attached"],
            stdin=subprocess.PIPE,  # kept open and empty: its end is how the child hears of ours
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._partial = b""
        self._over = False  # its output has ended: so has it, or it is about to

    def fileno(self) -> int:
        """Readable when it said something or ended."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def listen(self) -> bool:
        """Take in what it said. False once it has ended."""
        while not self._over and wait([self.fileno()], 0.0):
            piece = os.read(self.fileno(), 1 << 16)
            *lines, self._partial = (self._partial + piece).split(b"\n")
            self.said += [line.decode(errors="replace") for line in lines]
            self._over = not piece
        return not self._over

    def endpoint(self, deadline: float) -> str:
        """Where it listens: what its first line says last. Raises ChildFailed past `deadline` (time.monotonic), or when it ends before."""
        while not self.said:
            if not wait([self.fileno()], max(0.0, deadline - time.monotonic())):
                raise ChildFailed(f"{self.name} was not up in time; is the machine overloaded?")
            if not self.listen() and not self.said:
                raise ChildFailed(f"{self.name} ended before it was up ({self.cause(1.0)}); it says why above")
        return self.said[0].rpartition(" ")[2]

    def cause(self, timeout_s: float) -> str:
        """How it ended, in words; "" while it goes on. Waits for at most `timeout_s`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return ""
        return f"exit code {code}" if code >= 0 else f"killed by signal {-code}, {signal.strsignal(-code)}"

    @property
    def failed(self) -> bool:
        """It ended, and not in order."""
        return self._process.poll() not in (None, 0)

    def send(self, number: signal.Signals) -> None:
        """To this process only; nothing once it has ended."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Whatever is left of it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def disown(self) -> None:
        """In a process that was forked from the one that started it: it is to end with that one, not with us."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
