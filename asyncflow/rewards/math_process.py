"""The process that compares answers (`rewards.math_child`), seen from outside: asked with a deadline, ended when it passes one, started anew."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

import msgspec

import asyncflow
from asyncflow.launch.restarts import RestartLimit
from asyncflow.rewards.math_child import Question, Reply
from asyncflow.rewards.row_clock import uncounted

HERE = str(Path(asyncflow.__file__).parents[1])
EXTRA = "pip install 'asyncflow[math]'"
MOST_REPLY = 1 << 16  # bytes
START_S = 120.0  # sympy is imported within this, on a busy machine too
END_S = 10.0  # a killed process is gone within this
COME_UP_S = START_S + 2 * END_S  # and the one before it is gone
RESTARTS, RESTART_WINDOW_S = 16, 600.0  # a process that ends by itself is replaced at most so often within so many seconds
SHOWN = 200  # characters of a question in a message


class CompareFailed(RuntimeError):
    """The comparison raised, or the process ended in it. The next one gets a new process."""


class CompareBroken(RuntimeError):
    """The process ends again and again: the fault is not an answer's."""


class MathProcess:
    """Not for two threads at once. Starting it, also anew, is no row's time. One that ends by itself, in a comparison or between two, is replaced
    within limits; one that was ended at its deadline is no sign of a fault, whatever a model asks it."""

    def __init__(self, deadline_s: float, most_bytes: int) -> None:
        self._deadline_s, self._most_bytes = deadline_s, most_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = RestartLimit(RESTARTS, RESTART_WINDOW_S)
        self._asked: Question | None = None

    def equal(self, truths: list[str], answer: str) -> bool:
        """Raises TimeoutError past the deadline, CompareFailed with what went wrong, CompareBroken when the process ended too often, RuntimeError
        when no such process can be started here."""
        self.start()
        self._asked = Question(truths, answer)
        try:
            reply = self._ask(self._asked)
        except CompareFailed as error:
            self._count_end(error)
            raise
        if reply.error:
            raise CompareFailed(reply.error)
        return reply.equal

    def start(self) -> None:
        """Have it run, if it does not. Raises RuntimeError when it does not come up within `START_S`."""
        if self._process is not None and self._process.poll() is None:
            return
        with uncounted("starting the process that compares answers", COME_UP_S):
            if self._process is not None:  # it ended while nobody asked it anything, which is no answer's fault
                self._count_end(self._ended())
            self._start()

    def _count_end(self, how: CompareFailed) -> None:
        if self._restarts.allow():
            return
        rule = f"it is started anew at most {self._restarts.times} times within {self._restarts.window_s:g} s, so nothing is scored any more"
        fix = "its log may say why; where memory is short, raise task.options.compare_bytes"
        raise CompareBroken(f"{how}, {self._last()}; {rule}. Fix: {fix}") from how

    def _last(self) -> str:
        if self._asked is None:
            return "before it was asked anything"
        return f"last at the answer {self._asked.answer[:SHOWN]!r} where {repr(self._asked.truths)[:SHOWN]} is right"

    def close(self) -> None:
        """End it, and free what the system holds for it."""
        if self._process is not None:
            self._end(self._process)
            self._process = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def _start(self) -> None:
        path = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "asyncflow.rewards.math_child", str(self._most_bytes), str(math.ceil(self._deadline_s))],
            stdin=subprocess.PIPE,  # its end is how the child hears of ours
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            self._read(START_S)
        except (TimeoutError, CompareFailed) as error:
            raise RuntimeError(f"the process that compares answers did not start ({error}); nothing can be scored; its log says why") from error

    def _ask(self, question: Question) -> Reply:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        return self._read(self._deadline_s)

    def _read(self, within_s: float) -> Reply:
        """One line. The process is ended where it does not come, for an answer that comes late would be taken for the next one's."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + within_s, b""
        while not line.endswith(b"\n"):
            if not wait([self._process.stdout.fileno()], max(0.0, deadline - time.monotonic())):
                self.close()
                raise TimeoutError(f"no answer within {within_s:g} s")
            piece = os.read(self._process.stdout.fileno(), MOST_REPLY)
            if not piece:
                raise self._ended()
            line += piece
        return msgspec.json.decode(line, type=Reply)

    def _ended(self) -> CompareFailed:
        """It is gone, or about to be: say how it ended, and be ready for the next one."""
        assert self._process is not None
        process, self._process = self._process, None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)  # its output has ended, so it is about to: how, is what we want to know
        self._end(process)
        return CompareFailed(f"the process that compares answers ended with exit code {process.returncode}")

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # what was still to be written has no reader any more
                stream.close()
        process.wait(END_S)
