"""Workers of a run as `python -m asyncflow.worker` starts them, and their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.queue_bench.asking import ROOT

END_S = 30.0  # after the run was stopped


class WorkerEnded(RuntimeError):
    """A worker ended before the run did; the message has the last lines of its log."""


class Worker:
    def __init__(self, role: str, url: str, folder: Path) -> None:
        self._name, self._log = f"{role}-0", folder / f"{role}.log"
        command = [sys.executable, "-m", "asyncflow.worker", "--role", role, "--controller", url, "--name", self._name]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        if self._process.poll() is not None:
            raise WorkerEnded(f"{self._name} ended with exit code {self._process.returncode}:\n{self._log.read_text()[-3000:]}")

    def close(self) -> None:
        """The run was stopped, so it ends by itself; one that does not is ended."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
