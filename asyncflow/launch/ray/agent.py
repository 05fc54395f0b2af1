"""The agent: a Ray actor that holds a worker's place on a node and has the worker as its child, which dies with it.

The worker is the same program that any launcher starts, `python -m asyncflow.worker`; Ray sees to place and devices, and to nothing of what it does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from asyncflow.contracts.worker import WorkerArgs
from asyncflow.launch.child import VISIBLE
from asyncflow.launch.forkserver import THREAD_VARIABLES

RESOURCES = {"cuda": "GPU", "npu": "NPU"}  # what Ray calls an accelerator


class Order(msgspec.Struct, frozen=True):
    """One worker, as its agent is to start it."""

    args: WorkerArgs
    key: bytes | None  # contents of the client's key file: the file itself need not be on that node
    log: str  # on a file system that all nodes see, as everything of the run's directory is
    log_level: str
    search: tuple[str, ...]  # the launcher's module search path, beyond what an interpreter has anyway
    directory: str  # the launcher's working directory
    kind: str  # what an accelerator is in this run


class Agent:
    """Made an actor by `Agents`. Several of its methods run at once: one waits for the child, another signals it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def devices(self, kind: str) -> list[str]:
        """Ids of the accelerators that Ray gave to this actor."""
        import ray

        found: dict[str, list[Any]] = ray.get_runtime_context().get_accelerator_ids()
        return [str(device) for device in found.get(RESOURCES.get(kind, ""), [])]

    def start(self, order: Order, devices: list[str]) -> int:
        """Start the worker, which sees these devices; returns its pid. A worker before it has ended."""
        log = Path(order.log)
        if not log.parent.is_dir():
            raise FileNotFoundError(
                f"run.dir = {log.parent.parent}: there is no {log.parent} on the node of {order.args.name}, and every node writes there. "
                "Fix: run.root=DIR or --run-dir DIR on a file system that all nodes have in the same place"
            )
        environment = os.environ | self._environment(order, devices)
        directory = order.directory if Path(order.directory).is_dir() else None
        with log.open("ab") as output, _in_memory(order.key) as key:
            self._child = subprocess.Popen(
                _command(order, key), cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, pass_fds=key
            )
        return self._child.pid

    def wait(self, pid: int) -> int:
        """The exit code of the child with this pid, negative where a signal killed it. No deadline: its life is the deadline."""
        child = self._of(pid)
        code = child.wait()
        assert child.stdin is not None
        child.stdin.close()
        return code

    def send(self, number: int, pid: int) -> None:
        """A signal to this child, while it runs."""
        self._of(pid).send_signal(signal.Signals(number))

    def _of(self, pid: int) -> subprocess.Popen[bytes]:
        assert self._child is not None
        assert self._child.pid == pid, f"{pid} is another child than {self._child.pid}"
        return self._child

    def _environment(self, order: Order, devices: list[str]) -> dict[str, str]:
        """What a local worker has too: threads as they are configured, its own devices only."""
        threads = dict.fromkeys(THREAD_VARIABLES, str(order.args.threads))
        paths = [*order.search, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        found = {**threads, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
        visible = VISIBLE.get(order.kind)
        return found if visible is None else {**found, visible: ",".join(devices)}


def _command(order: Order, key: tuple[int, ...]) -> list[str]:
    """-P: a file in the working directory that is named like a library is not that library."""
    args = order.args
    command = [sys.executable, "-P", "-m", "asyncflow.worker", "--attached", "--role", args.role, "--name", args.name]
    command += ["--controller", args.controller, "--threads", str(args.threads), "--log-level", order.log_level]
    return [*command, *(word for descriptor in key for word in ("--key", f"/proc/self/fd/{descriptor}"))]


@contextmanager
def _in_memory(key: bytes | None) -> Iterator[tuple[int, ...]]:
    """A descriptor of a file that is nowhere on a disk and goes with the processes that hold it; none without a key."""
    if key is None:
        yield ()
        return
    descriptor = os.memfd_create("client.key")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, key)
        yield (descriptor,)
    finally:
        os.close(descriptor)
