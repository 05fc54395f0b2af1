"""The other end of `answering`: start such a process, ask it, and never wait for it without a deadline."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
END_S = 20.0  # to end after its stdin was closed


class ProcessFailed(RuntimeError):
    """It answered with an error, ended, or was late; the message has the last lines of its stderr."""


class Asked:
    """One process. `argv` without the interpreter runs ours as a module of this tree; with `python`, that interpreter runs the file."""

    def __init__(self, script: Path | str, python: str | None = None, env: Mapping[str, str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile("a+")  # noqa: SIM115 - closed by `close`; appended to: reading it here must not move the writer
        argv = [sys.executable, "-m", str(script)] if python is None else [python, str(script)]
        full = {**os.environ, **({"PYTHONPATH": str(ROOT)} if python is None else {}), **(env or {})}
        folder = None
        if python is not None:  # a peer has our package's name, so neither path nor folder (Ray's workers look there) may lead to this tree's root
            full.pop("PYTHONPATH", None)
            folder = Path(script).parent
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._stderr}
        self.process = subprocess.Popen(argv, text=True, env=full, cwd=folder, **pipes)
        self.pid = self.process.pid

    def send(self, op: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ProcessFailed(f"{op}: the process has ended\n{self._last_lines()}") from None

    def receive(self, timeout_s: float = 120.0) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise ProcessFailed(f"no answer within {timeout_s:g} s\n{self._last_lines()}")
        line = self.process.stdout.readline()  # an answer is one line, written at once
        if not line:
            raise ProcessFailed(f"it ended with exit code {self.process.wait(END_S)}\n{self._last_lines()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ProcessFailed(f"{reply['error']}\n{reply['traceback']}")
        return reply

    def ask(self, op: str, timeout_s: float = 120.0, **arguments: Any) -> dict[str, Any]:
        self.send(op, **arguments)
        return self.receive(timeout_s)

    def close(self) -> None:
        """Its stdin ends and with it the process; one that does not end is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._stderr.close()

    def last_words(self) -> str:
        """Of a process that has ended; empty while it runs."""
        return "" if self.process.poll() is None else self._last_lines()

    def _last_lines(self, count: int = 12) -> str:
        self._stderr.seek(0)
        return "".join(self._stderr.readlines()[-count:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def ask_all(processes: Iterable[Asked], op: str, timeout_s: float = 300.0, **arguments: Any) -> list[dict[str, Any]]:
    """The same question to all at the same time."""
    asked = list(processes)
    for process in asked:
        process.send(op, **arguments)
    return [process.receive(timeout_s) for process in asked]


def together_s(replies: Iterable[dict[str, Any]]) -> float:
    """From the first begin to the last end, of replies that tell both by the system's monotonic clock."""
    found = list(replies)
    return float(max(reply["end"] for reply in found) - min(reply["begin"] for reply in found))
