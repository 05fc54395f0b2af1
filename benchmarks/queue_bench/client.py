"""A client of ours in a process of its own: for rows with several clients, and wherever a second process has to look at memory."""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

import numpy as np

from benchmarks.queue_bench.adapter import Member, as_columns
from benchmarks.queue_bench.answering import answer
from benchmarks.queue_bench.limits import WarmMemory
from benchmarks.queue_bench.payload import Case, read_every_byte
from benchmarks.queue_bench.raw_zmq import RawClient


class Client:
    def join(self, url: str, name: str, security: dict[str, Any] | None = None, **path: Any) -> dict[str, Any]:
        self.member = Member(url, name, security, **path)
        return {}

    def make(self, case: dict[str, Any], prompt_tokens: int = 0) -> dict[str, Any]:
        """The columns that `put` puts; `prompt_tokens`: and a prompt a group."""
        self.case = Case(**case)
        self.values = self.case.values()
        self.columns = as_columns(self.case, self.values)
        groups = self.case.rows // self.case.group_rows
        self.shared = {"prompt": np.ones((groups, prompt_tokens), dtype=np.int64)} if prompt_tokens else None
        return {}

    def put(self) -> dict[str, Any]:
        begin = time.monotonic()
        self.member.put(self.columns, self.case.rows, self.shared)
        return {"begin": begin, "end": time.monotonic()}

    def take_and_read(self, rows: int, keep: bool = False) -> dict[str, Any]:
        """`keep`: hold the tensors until `let_go`."""
        begin = time.monotonic()
        self.taken = self.member.take(rows)
        took = time.monotonic()
        got = self.member.read(self.taken)
        end = time.monotonic()
        self.held = got if keep else None
        return {"begin": begin, "end": end, "read_s": end - took}

    def read_held(self) -> dict[str, Any]:
        return {"sum": read_every_byte([tensor.numpy() for tensor in self.held.values()])} if self.held else {}

    def let_go(self) -> dict[str, Any]:
        """Drop what was taken, tensors and groups."""
        self.held = None
        self.member.drop(self.taken)
        return {}

    def samples(self, batch: int, count: int) -> dict[str, Any]:
        """See `sample_seconds`; when it began and ended, too. Everything taken is dropped afterwards."""
        begin = time.monotonic()
        seconds, taken = sample_seconds(self.member, batch, count)
        end = time.monotonic()
        for one in taken:
            self.member.drop(one)
        return {"seconds": seconds, "begin": begin, "end": end}

    # ------------------------------------------------------------ limits

    def warm(self, nbytes: int) -> dict[str, Any]:
        self.memory = WarmMemory([nbytes])
        self.source = np.ones(nbytes, dtype=np.uint8)
        return {}

    def copy(self) -> dict[str, Any]:
        begin = time.monotonic()
        self.memory.copy_in([self.source])
        return {"begin": begin, "end": time.monotonic()}

    def look_at(self, pid: int, fd: int, nbytes: int) -> dict[str, Any]:
        """Map a memfd of another process and read all of it; the mapping stays."""
        handle = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY)
        self.looked_at = mmap.mmap(handle, nbytes, prot=mmap.PROT_READ)
        os.close(handle)
        return {"sum": read_every_byte([np.frombuffer(self.looked_at, dtype=np.uint8)])}

    def raw_connect(self, endpoint: str, key: str | None) -> dict[str, Any]:
        self.raw = RawClient(endpoint, key)
        return {}

    def raw_put_and_get(self) -> dict[str, Any]:
        begin = time.monotonic()
        self.raw.put(list(self.values.values()))
        self.raw.get()
        return {"begin": begin, "end": time.monotonic()}

    def put_and_get(self) -> dict[str, Any]:
        """Ours, the same."""
        begin = time.monotonic()
        self.member.put(self.columns, self.case.rows)
        self.taken = self.member.take(self.case.rows)
        got = self.member.read(self.taken)
        end = time.monotonic()
        del got
        return {"begin": begin, "end": end}


def sample_seconds(member: Member, batch: int, count: int) -> tuple[list[float], list[Any]]:
    """`count` times: put `batch` samples of 1 KB, take as many, read them. Seconds of each, and what was taken."""
    columns = {"ids": np.ones((batch, 256), dtype=np.int32)}
    seconds, taken = list[float](), list[Any]()
    for _ in range(count):
        begin = time.perf_counter()
        member.put(columns, batch)
        one = member.take(batch)
        member.read(one)
        seconds.append(time.perf_counter() - begin)
        taken.append(one)
    return seconds, taken


if __name__ == "__main__":
    answer(Client())
