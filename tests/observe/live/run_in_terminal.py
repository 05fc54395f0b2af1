"""`asyncflow train` in a terminal of its own, drawn in memory: what a person would see, and the keys that a person would press."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.observe.live.screen import Terminal

ROOT = Path(__file__).parents[3]


class TrainingTerminal:
    """The program's controlling terminal, so that Ctrl-C reaches its whole group as it does at a desk."""

    def __init__(self, arguments: list[str], width: int, height: int) -> None:
        self.terminal = Terminal(width, height)
        self._code: int | None = None
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:  # nothing of Python's may run here but the replacement of this process
            os.chdir(ROOT)
            os.environ.update(OMP_NUM_THREADS="1", TERM="xterm-256color", COLUMNS="", LINES="")
            os.execv(sys.executable, [sys.executable, "-m", "asyncflow.cli.main", "train", *arguments])
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def until(self, seen: Callable[[list[str]], bool], timeout_s: float) -> list[str]:
        """Draw what comes until `seen(rows)`, or until the program closed its terminal. Returns the rows."""
        deadline = time.monotonic() + timeout_s
        while not seen(self.terminal.rows):
            left_s = deadline - time.monotonic()
            assert left_s > 0, "\n".join(self.terminal.rows)
            if select.select([self._descriptor], [], [], left_s)[0] and not self._draw():
                break
        return self.terminal.rows

    def _draw(self) -> bool:
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # Linux says so where the other side is closed
            return False
        self.terminal.screen_feed(data.decode(errors="replace"))
        return bool(data)

    def press(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def exit_code(self) -> int:
        """Waits for its end; it has closed its terminal by then."""
        self.until(lambda rows: False, 60.0)
        self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def __enter__(self) -> TrainingTerminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._descriptor)
        if self._code is None:  # a test that failed leaves no run behind: its workers end with their parent
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
