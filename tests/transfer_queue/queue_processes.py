"""Members and servers of a queue as processes of their own, for tests of what is left when they are killed.

A test starts `Process("hold", url, …)`; the function of that name below runs there. It says something by `say` and ends when its stdin closes.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import queue_run as run

from transfer_queue import messages as m
from transfer_queue.client import QueueClient

HERE = Path(__file__).parent
COLUMN = "response_ids"


class Process:
    """One of the functions below, by name. Killed on leaving the context."""

    def __init__(self, function: str, *arguments: str) -> None:
        code = "import sys, queue_processes; getattr(queue_processes, sys.argv[1])(*sys.argv[2:])"
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}", "OMP_NUM_THREADS": "1"}
        self.popen = subprocess.Popen(
            [sys.executable, "-c", code, function, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def heard(self) -> str:
        """The next line it says."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, f"it ended with {self.popen.wait(10)}"
        return line.rstrip("\n")

    def tell(self, text: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(10)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for stream in (self.popen.stdin, self.popen.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def four(rows: int, width: int) -> Iterator[tuple[Process, Process, Process, Process]]:
    """Controller, shard, a writer of `rows` x `width` and a reader, all of them ready. Killed on leaving the context."""
    with ExitStack() as stack:
        controller = stack.enter_context(Process("controller"))
        url = controller.heard()
        shard = stack.enter_context(Process("shard", url))
        shard.heard()
        writer, reader = (stack.enter_context(Process(*what)) for what in (("writer", url, str(rows), str(width)), ("reader", url)))
        assert (writer.heard(), reader.heard()) == ("ready", "ready")
        yield controller, shard, writer, reader


def say(text: str) -> None:
    print(text, flush=True)


def values(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """[rows, width] int32."""
    return np.random.default_rng(seed).integers(0, 1 << 30, (rows, width), dtype="int32")


def refs(slices: list[m.Slice]) -> list[m.RowRef]:
    """Rows of groups 0, 1, … as a consumer would get them."""
    return [m.RowRef(gid, 0, 0, 0, [found]) for gid, found in enumerate(slices)]


def read(client: QueueClient, slices: list[m.Slice], writable: bool = False) -> np.ndarray:
    return client.read(refs(slices), [COLUMN], run.spec(), writable)[COLUMN].dense()


def controller() -> None:
    from transfer_queue.controller.core import CoreConfig
    from transfer_queue.controller.server import serve
    from transfer_queue.local import Events

    serve(CoreConfig(topics=[run.spec()], heartbeat_s=300.0), Events, bind="tcp://127.0.0.1:0", security=None, ready=say)


def kept_controller(folder: str, sync: str = "commit", comeback_s: str = "20", snapshot_bytes: str = str(64 << 20), drain_s: str = "20") -> None:
    """One that keeps a journal."""
    from transfer_queue.controller.core import CoreConfig
    from transfer_queue.journal.serving import serve
    from transfer_queue.journal.settings import JournalSettings
    from transfer_queue.local import Events

    journal = JournalSettings(folder=folder, sync=sync, snapshot_bytes=int(snapshot_bytes))  # type: ignore[arg-type]
    config = CoreConfig(topics=[run.spec()], heartbeat_s=300.0, comeback_s=float(comeback_s))
    serve(config, Events, journal, bind="tcp://127.0.0.1:0", security=None, ready=say, drain_s=float(drain_s))


def shard(url: str, name: str = "shard-0", capacity_bytes: str = str(1 << 30), keep_bytes: str = str(1 << 28)) -> None:
    from transfer_queue.shard.server import serve

    serve(name, url, capacity_bytes=int(capacity_bytes), keep_bytes=int(keep_bytes), ready=say, drain_s=20.0)


def writer(url: str, rows: str, width: str) -> None:
    """Says the slices of what it wrote and published to nobody."""
    with QueueClient.connect(url, name="writer-0", role="rollout") as client:
        put = values(int(rows), int(width))
        say("ready")
        while sys.stdin.readline():
            say(msgspec.json.encode(client.write(range(len(put)), {COLUMN: put})[COLUMN]).decode())


def keyed_writer(url: str, cells: str) -> None:
    """Puts a row, then writes the bytes of one that it never puts."""
    from transfer_queue.keyed import KeyedClient
    from transfer_queue.keyed.packing import typed_columns

    row = {"x": np.ones((1, int(cells)), dtype="int64")}
    with KeyedClient.connect(url, name="keyed-writer-0", role="writer") as client:
        client.put("train", ["a"], row)
        say("published")
        sys.stdin.readline()
        client._store(typed_columns(1, row), 1)
        say("written")
        sys.stdin.readline()


def reader(url: str) -> None:
    """Reads the slices it is told, keeps the arrays and says their sum."""
    kept = []
    with QueueClient.connect(url, name="reader-0", role="trainer") as client:
        say("ready")
        while line := sys.stdin.readline():
            found = msgspec.json.decode(line, type=list[m.Slice])
            kept.append(read(client, found))
            say(str(int(kept[-1].sum(dtype=np.int64))))


def saver(url: str, folder: str) -> None:
    """Saves in chunks of a few bytes. Says 0 before it asks for the state, 1, 2, … before it keeps a chunk, and goes on when it is told to; then how
    it ended."""
    from transfer_queue.errors import Gone, QueueError, QueueGone
    from transfer_queue.saving import folder as saved
    from transfer_queue.saving import places, saver

    places.CHUNK_BYTES, saver.UNDER_WAY = 64, 1
    steps = iter(range(1 << 30))

    def when_told(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            say(str(next(steps)))
            sys.stdin.readline()
            return function(*arguments)

        return call

    saver._state = when_told(saver._state)
    saved.Writing.add = when_told(saved.Writing.add)  # type: ignore[method-assign]
    try:
        saver.save(url, Path(folder))
        say("saved")
    except (Gone, QueueError, QueueGone) as error:
        say(f"failed: {error}")


def killed_in_puts(url: str, lines: str) -> None:
    """A writer for each line, all at once: each says the gid and the seed of every row that was acknowledged, and is killed at its line of a put."""
    import ahead_writers as writers

    children = []
    for line in range(int(lines)):
        children.append(os.fork())
        if not children[-1]:
            with contextlib.suppress(BaseException):  # whatever it is: this child says by how it ends that it was not killed
                writers.put_until_killed(url, line)
            os._exit(1)
    say("ended " + " ".join(str(-os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children))
