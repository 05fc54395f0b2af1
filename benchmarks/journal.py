"""What a journal costs the controller, and how long it takes to come back: `python benchmarks/journal.py --json FILE`.

What a request costs is the processor's time of the thread that serves, sockets included; what a commit costs is the time until its reply, for its
input is on the disk by then. Controllers with and without a journal take turns.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, Python knows only this folder

from benchmarks.harness import Results, Row, arguments, finish, machine
from transfer_queue import messages as m
from transfer_queue.controller import server as plain
from transfer_queue.controller.core import CoreConfig
from transfer_queue.controller.repeats import FIRST
from transfer_queue.frozen import pack
from transfer_queue.journal import serving as kept
from transfer_queue.journal.recovery import open_journal, restore
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.wire import decode_reply, decode_request, encode

MOST = 0.1  # of the controller's time a request
WAIT_S = 30.0
WHO = {"member": "a", "incarnation": 0}
SPEC = m.TopicSpec(
    name="t",
    model="p",
    columns=(m.Column("tokens", "int32", "per_token", "rollout"), m.Column("reward", "float64", "scalar", "reward")),
    consumers=(
        m.Consumer("reward", inputs=("tokens",), outputs=("reward",), sampler="in_order"),
        m.Consumer("trainer", inputs=("tokens", "reward"), unit="group", terminal=True, sampler="in_order"),
    ),
    window=m.Window(batch=1, staleness=None, budget_bytes=1 << 40, group_bytes=1),
)


class Nobody:
    def on_event(self, event: m.Event) -> None: ...

    def on_moves(self, moves: object, t_s: float) -> None: ...


def config(batch: int) -> CoreConfig:
    spec = msgspec.structs.replace(SPEC, window=m.Window(batch, None, "wait", 1 << 40, 1))
    return CoreConfig(topics=[spec], heartbeat_s=1e9, stall_s=1e9, lease_s=1e9)


class Asker(ABC):
    """A member of a controller, with one topic."""

    def __init__(self, batch: int) -> None:
        self.batch, self._step, self._id, self._blocks = batch, 0, FIRST, 0

    @abstractmethod
    def answer(self, frame: bytes) -> Any:
        """To an encoded request."""

    def ask(self, request: Any) -> Any:
        self._id += 1
        reply = self.answer(encode(msgspec.structs.replace(request, id=self._id)))
        assert not isinstance(reply, m.ErrorReply), reply
        return reply

    def join(self) -> None:
        self.ask(m.Register(name="a", role="worker", pid=1, host="h"))

    def put(self) -> None:
        self.ask(m.Put(topic="t", token=self._id, groups=self.batch, rows_per_group=1, columns={"tokens": self._places()}, wait_s=0.0, **WHO))

    def _places(self) -> bytes:
        table = np.zeros((self.batch, 4), dtype=np.int64)
        table[:, 1] = np.arange(self._blocks, self._blocks + self.batch)
        table[:, 3] = 8
        self._blocks += self.batch
        return m.packed(table)

    def cycle(self) -> None:
        """Three requests."""
        self.put()
        taken = self.ask(m.Take(topic="t", consumer="reward", limit=self.batch, wait_s=0.0, **WHO))
        columns = {"reward": self._places()}
        self.ask(m.WriteBack(topic="t", consumer="reward", lease=taken.lease, gids=taken.rows.gids, rows=taken.rows.rows, columns=columns, **WHO))

    def commit(self) -> float:
        """Of a batch; returns the seconds until its reply."""
        lease = self.ask(m.Take(topic="t", consumer="trainer", limit=self.batch, step=self._step, wait_s=0.0, **WHO)).lease
        begun = time.perf_counter()
        self.ask(m.Commit(topic="t", consumer="trainer", model="p", epoch=0, step=self._step, leases=[lease], **WHO))
        self._step += 1
        return time.perf_counter() - begun


class Served(Asker):
    """A controller in a process of its own, with its sockets."""

    def __init__(self, batch: int, folder: Path | None) -> None:
        super().__init__(batch)
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(batch, folder, theirs), daemon=True)
        self._process.start()
        assert ours.poll(WAIT_S), "the controller did not start"
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.connect(ours.recv())
        self.join()

    def answer(self, frame: bytes) -> Any:
        self._socket.send(frame)
        assert self._socket.poll(int(WAIT_S * 1000)), "no reply"
        return decode_reply(self._socket.recv())

    def worked_s(self) -> float:
        """Seconds of processor that the thread of the controller's loop has had."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self) -> None:
        self.ask(m.Stop(reason="measured"))
        self._socket.close(linger=0)
        self._process.join(WAIT_S)


def _serve(batch: int, folder: Path | None, told: Any) -> None:
    more: dict[str, Any] = {"bind": "tcp://127.0.0.1:0", "security": None, "ready": told.send, "grace_s": 0.1}
    if folder is None:
        plain.serve(config(batch), Nobody, **more)
    else:
        kept.serve(config(batch), Nobody, JournalSettings(folder=str(folder)), **more)


class Bare(Asker):
    """A state machine and its journal, without sockets: for what is measured of them alone."""

    def __init__(self, batch: int, folder: Path) -> None:
        super().__init__(batch)
        opened = open_journal(JournalSettings(folder=str(folder)), config(batch), Nobody())
        self.core, self.journal = opened.core, opened.journal
        self.join()

    def answer(self, frame: bytes) -> Any:
        request = decode_request(frame)
        self.journal.request(b"a", frame, request)
        self.core.handle(b"a", request)
        self.journal.keep(self.core.outbox)
        reply = self.core.outbox.pop()[1]
        self.core.frees.clear()
        return reply


def requests(folder: Path, repeats: int, cycles: int) -> Iterator[Row]:
    for batch in (1, 16, 256):
        turns = max(5, cycles // batch**0.5)
        sides = {"without": Served(batch, None), "with": Served(batch, folder / f"cost-{batch}")}
        worked, waited = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for repeat in range(repeats + 1):
            for name, side in sides.items():
                before = side.worked_s()
                for _ in range(int(turns)):
                    side.cycle()
                spent = (side.worked_s() - before) / (3 * int(turns))
                commits = [side.commit() for _ in range(int(turns))]
                if repeat:  # the first warms up
                    worked[name].append(spent * 1e6)
                    waited[name].append(statistics.median(commits) * 1e6)
        for side in sides.values():
            side.close()
        yield _compared(f"the loop's time for a request of {batch} rows, with a journal", worked, MOST, "put, take, write back")
        yield _compared(f"a commit of {batch} rows until its reply, with a journal", waited, None, "on the disk; without: in memory")


def _compared(name: str, found: dict[str, list[float]], most: float | None, note: str) -> Row:
    value, reference = statistics.median(found["with"]), statistics.median(found["without"])
    goal, ratio = None if most is None else 1 + most, value / reference
    met = None if goal is None else ratio <= goal
    note = f"{note}; medians of {len(found['with'])}"
    return Row(name=name, value=value, unit="µs", reference=reference, ratio=ratio, goal=goal, met=met, note=note)


def states(folder: Path, sizes: list[int]) -> Iterator[Row]:
    for rows in sizes:
        own = folder / f"state-{rows}"
        side = Bare(min(rows, 1000), own)
        for _ in range(rows // side.batch):
            side.put()
        begun = time.perf_counter()
        packed = pack(side.core.freeze())
        stall = time.perf_counter() - begun
        nbytes = len(packed.record) + sum(array.nbytes for array in packed.arrays)
        yield Row(name=f"a snapshot of {rows} rows holds the loop up", value=stall * 1e3, unit="ms", note=f"{nbytes / 1e6:.3g} MB")
        log = sum(path.stat().st_size for path in own.iterdir())
        begun = time.perf_counter()
        assert restore(own, config(side.batch), Nobody()) is not None
        note = f"{log / 1e6:.3g} MB, 1000 rows a put"
        yield Row(name=f"back to {rows} rows by their inputs", value=time.perf_counter() - begun, unit="s", note=note)
        side.journal.snapshot()
        side.journal.close()
        begun = time.perf_counter()
        assert restore(own, config(side.batch), Nobody()) is not None
        yield Row(name=f"back to {rows} rows by a snapshot", value=time.perf_counter() - begun, unit="s")
        shutil.rmtree(own)


def main() -> None:
    args = arguments(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    results = Results(rows=[], machine=machine())
    folder = Path(tempfile.mkdtemp(prefix="journal-", dir=os.environ.get("TMPDIR")))
    try:
        repeats, cycles = (1, 20) if args.quick else (15, 400)
        results.add(*requests(folder, repeats, cycles))
        results.add(*states(folder, [1000] if args.quick else [1000, 100_000, 1_000_000]))
    finally:
        shutil.rmtree(folder)
    if args.quick:
        results.rows = [msgspec.structs.replace(row, met=None) for row in results.rows]
    finish(results, args.json)


if __name__ == "__main__":
    main()
