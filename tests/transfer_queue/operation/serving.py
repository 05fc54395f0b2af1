"""`python -m transfer_queue serve` as a process, and what is left of it."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

import psutil

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "queue.toml"
SOON_S = 30.0  # beyond it a test fails


class Serving:
    """Started on entering; whatever is left of it is killed on leaving."""

    def __init__(self, file: Path, *options: str, **variables: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
        command = [sys.executable, "-m", "transfer_queue", "serve", str(file), *options]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=file.parent, env=environment, stdout=pipe, stderr=pipe, stdin=subprocess.DEVNULL, text=True)
        self._lines: queue.Queue[str] = queue.Queue()  # a put for each line; "" at the end
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")

    def line(self) -> str:
        """The next one; "" once it ended."""
        return self._lines.get(timeout=SOON_S)

    def until(self, beginning: str) -> str:
        """The next line that begins so, what follows it."""
        while line := self.line():
            if line.startswith(beginning):
                return line.removeprefix(beginning)
        raise AssertionError(f"it ended without {beginning!r}")

    def children(self) -> list[psutil.Process]:
        """The controller first."""
        return sorted(psutil.Process(self.process.pid).children(), key=lambda child: child.create_time())

    def ends(self) -> tuple[int, str]:
        """Exit code and standard error."""
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        return self.process.wait(SOON_S), said

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            for child in self.children():
                child.kill()
            self.process.kill()
        self.process.wait(SOON_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def gone(processes: list[psutil.Process], within_s: float = SOON_S) -> bool:
    """Whether all of them end in time."""
    return not psutil.wait_procs(processes, within_s)[1]


def ended_by(serving: Serving, number: signal.Signals, within_s: float = SOON_S) -> tuple[int, str, float]:
    """Exit code, standard error, and the seconds that it took."""
    begun = time.monotonic()
    serving.process.send_signal(number)
    code, said = serving.ends()
    return code, said, time.monotonic() - begun


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """The example's file with one thing other."""
    assert old in EXAMPLE.read_text()
    file = tmp_path / "queue.toml"
    file.write_text(EXAMPLE.read_text().replace(old, new))
    return file
