"""One local process: how it is started, how it is told to end, and how its end is put into words."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import msgspec

from asyncflow.contracts.worker import EXPELLED
from asyncflow.launch.parent import exit_with_parent
from asyncflow.launch.server_path import same_path

VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}  # which accelerators a process may see

FULL_BYTES = 1 << 20  # less is free: a log line may fit, the next record does not


class ChildSpec(msgspec.Struct, frozen=True):
    """What to start. `entry` is "module:function", called with `args`; its return value is the exit code (None: 0)."""

    name: str  # stable across restarts
    role: str
    entry: str
    args: tuple[Any, ...]
    log: str  # file that its standard output and error are appended to
    restartable: bool = False
    environment: dict[str, str] = {}
    log_level: str = "info"  # least severe messages of `logging` in the log file


class Child:
    """A started `ChildSpec`."""

    def __init__(self, context: ForkServerContext, spec: ChildSpec) -> None:
        self.spec = spec
        self._code: int | None = None
        self.process = context.Process(target=run_child, args=(spec,), name=spec.name)
        with without_interrupts(), same_path():
            self.process.start()

    @property
    def sentinel(self) -> int:
        """Readable when the process has ended."""
        return self.process.sentinel

    @property
    def exit_code(self) -> int | None:
        """None while it runs, negative when a signal killed it."""
        if self._code is None:
            self.process.join(0)
            self._code = self.process.exitcode
        return self._code

    @property
    def pid(self) -> int | None:
        """None once it is closed."""
        return self.process.pid if self._code is None else None

    @property
    def cause(self) -> str:
        """Of its end, in words."""
        return cause_of(self.exit_code or 0)

    def send(self, number: signal.Signals) -> None:
        """To this process only, and only while it is ours to signal (not reaped)."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)

    def close(self) -> None:
        """Free what the operating system holds for an ended process."""
        self.process.join()
        self.process.close()

    def tail(self, lines: int = 25) -> str:
        """The end of its log."""
        return tail_of(self.spec.log, lines)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """The first child starts the fork server, which inherits what is blocked here: Ctrl-C while it still imports would end it with a traceback, and
    then us. One that comes to us meanwhile is noted afterwards."""
    resource_tracker.ensure_running()  # else it is started meanwhile, and that takes SIGINT out of what is blocked
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cause_of(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code == EXPELLED:
        return "out of touch with the controller"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def full_disk(directory: Path) -> str:
    """", and …" where a full disk is why a process ended and its log says nothing: the log lies there too."""
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return f", and {directory} cannot be read ({error.strerror or error})"
    return f", and the disk of {directory} is full" if free < FULL_BYTES else ""


def run_child(spec: ChildSpec) -> None:
    """In the new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the launcher turns it into a stop
    exit_with_parent()
    _redirect(spec.log)
    os.environ.update(spec.environment)
    logging.basicConfig(level=spec.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    module, _, name = spec.entry.partition(":")
    entry: Callable[..., int | None] = getattr(importlib.import_module(module), name)
    sys.exit(entry(*spec.args))


def _redirect(log: str) -> None:
    """Standard output and error into the log file, also for C code and for interpreters started from here."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def device_environment(kind: str, devices: tuple[int, ...]) -> dict[str, str]:
    """Environment that shows a worker its own accelerators only; none for workers on the CPU."""
    variable = VISIBLE.get(kind)
    return {} if variable is None else {variable: ",".join(map(str, devices))}


def tail_of(log: str, lines: int) -> str:
    """The last lines of a log; "" where there is none."""
    try:
        text = Path(log).read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
