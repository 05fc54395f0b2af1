"""The processes of a soak: started, killed with -9, started again in the same seat."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.soak.settings import CAPACITY_BYTES, KEEP_BYTES, Seat, Settings

ROOT = Path(__file__).parents[2]
UP_S = 180.0  # deadline of a start; a controller reads its journal
END_S = 10.0  # of a process that was killed, or told to end by the end of its standard input


class Child:
    """One life after the other of one seat."""

    def __init__(self, seat: Seat, settings: Settings) -> None:
        self.seat, self._settings = seat, settings
        self.life = -1
        self.killed = False  # by us, in this life
        self.ended = False  # in order: it is not started again
        self.started = 0.0
        self.pidfd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return Path(self._settings.folder) / "logs" / f"{self.seat.name}.{self.life:05d}.log"

    def start(self, url: str) -> None:
        """The next life. Servers and workers end when we do: they watch their standard input."""
        self._url = url
        self.life, self.killed, self.started = self.life + 1, False, time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command(), stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, cwd=ROOT)
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        self.killed = True
        assert self._process is not None
        self._process.kill()

    def close(self) -> int:
        """After its end: what it leaves with us. Returns the exit code."""
        assert self._process is not None
        code = self._process.wait(END_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self.pidfd)
        self.pidfd = -1
        return code

    def _command(self) -> Sequence[str]:
        folder, seat = Path(self._settings.folder), self.seat
        queue = [sys.executable, "-m", "transfer_queue"]
        match seat.kind:
            case "controller":
                return [*queue, "controller", str(folder / "queue.json"), "--journal", str(folder / "journal"), "--attached"]
            case "shard":
                sizes = ["--capacity-bytes", str(CAPACITY_BYTES), "--keep-bytes", str(KEEP_BYTES)]
                return [*queue, "shard", "--controller", self._url, "--index", str(seat.index), *sizes, "--attached"]
            case "fuzzer":
                what = [msgspec.json.encode(self._settings).decode(), self._url]
                return [sys.executable, "-m", "tests.soak.fuzzer", *what, str(folder / "records")]
        what = [msgspec.json.encode(seat).decode(), str(self.life), self._url]
        return [sys.executable, "-m", "tests.soak.worker", *what, str(folder / "records")]


def pss_bytes(pid: int) -> int:
    """Memory of a process; pages that several processes share count in parts."""
    line = next(line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def wait(children: Sequence[Child], timeout_s: float) -> list[Child]:
    """Those of them that have ended, at the latest after `timeout_s`."""
    poll = select.poll()
    by_descriptor = {child.pidfd: child for child in children if child.pidfd >= 0}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)]
