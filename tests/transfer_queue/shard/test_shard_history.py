"""Any history of a shard, against a model that is a dict of bytes: what is read is what was written, and what is held never changes.

Readers are real processes that are really killed; the writers write straight into the arena, late ones included.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transfer_queue.shard import messages as m
from transfer_queue.shard.answers import Answers
from transfer_queue.shard.extent import PAGE
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.store import Store

CAPACITY = 40 * PAGE
NAMES = ("a", "b")
sizes = st.integers(0, 100) | st.integers(0, 4 * PAGE)
tables = st.integers(1, 4).flatmap(lambda groups: st.lists(st.lists(sizes, min_size=groups, max_size=groups), min_size=1, max_size=3))


@dataclass
class Block:
    owner: str
    first: int
    offset: int
    pieces: list[tuple[int, int]]  # in the extent
    data: list[bytes]
    writer: bytes | None  # connection that maps the arena and has not been heard to be through


@dataclass
class Reader:
    process: subprocess.Popen[bytes]
    holds: dict[int, list[Block]] = field(default_factory=dict)


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, Block] = {}
        self.seen: set[int] = set()
        self.readers: dict[bytes, Reader] = {}
        self.strays: list[tuple[bytes, Block]] = []  # swept under a writer that lives on
        self.incarnations = dict.fromkeys(NAMES, 0)
        self.connections = 0

    @initialize(keep=st.sampled_from([0, 8 * PAGE, 2 * CAPACITY]), seed=st.integers(0, 2**32 - 1))
    def start(self, keep: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.answers = Answers(Store(CAPACITY, keep))
        self.store = self.answers.store
        self.empty_bytes = self.store.arena.resident_bytes()
        self.join("a")

    def ask(self, sender: bytes, request: m.ShardRequest, *frames: bytes) -> tuple:
        reply = self.answers.answer(sender, request, list(frames))
        return (None, ()) if reply is None else reply

    def owner(self, name: str) -> str:
        return f"{name}#{self.incarnations[name]}"

    # ------------------------------------------------------------ who reads and writes

    @precondition(lambda self: len(self.readers) < 3)
    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        self.connections += 1
        sender = b"%d" % self.connections
        process = subprocess.Popen(["sleep", "600"])
        self.readers[sender] = Reader(process)
        self.ask(sender, m.Join(owner=self.owner(name), pid=process.pid))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(sorted(self.readers)))
        self.readers[sender].process.kill()
        self.readers[sender].process.wait()  # a zombie has ended, too; here it is gone altogether
        del self.readers[sender]
        self.strays = [(writer, block) for writer, block in self.strays if writer != sender]
        for block in self.blocks.values():
            block.writer = None if block.writer == sender else block.writer
        self.answers.collect(0)

    # ------------------------------------------------------------ bytes

    @rule(name=st.sampled_from(NAMES), table=tables, how=st.sampled_from(["map", "write", "fill"]), data=st.data())
    def put(self, name: str, table: list[list[int]], how: str, data: st.DataObject) -> None:
        cuts = [[0, *np.cumsum(row).tolist()] for row in table]
        columns = [self.rng.bytes(marks[-1]) for marks in cuts]
        sender = data.draw(st.sampled_from(sorted(self.readers))) if how == "map" and self.readers else b"bytes"
        before = self.state()
        try:
            if how == "write":
                reply, _ = self.ask(sender, m.Write(owner=self.owner(name), cuts=cuts), *columns)
            else:
                reply, _ = self.ask(sender, m.Reserve(owner=self.owner(name), cuts=cuts))
        except Refused as refused:
            full = sum(map(len, columns)) + self.store.used_bytes > CAPACITY
            assert (refused.code, full, self.state()) == ("capacity", True, before)  # noqa: PT017 (what may be refused depends on the history)
            return
        self.note(reply.first, self.owner(name), columns, cuts, sender if how == "map" and sender != b"bytes" else None)
        if how == "fill":
            self.fill(reply.first, self.owner(name), columns, cuts)
        elif how == "map":
            for block in list(self.blocks.values())[-len(cuts[0]) + 1 :]:
                self.scribble(block, block.data)

    def note(self, first: int, owner: str, columns: list[bytes], cuts: list[list[int]], writer: bytes | None) -> None:
        extent = self.store.blocks[first]
        for group in range(len(cuts[0]) - 1):
            block = first + group
            assert block not in self.seen, "a number was used twice"
            self.seen.add(block)
            pieces = [(int(marks[group]), int(marks[group + 1])) for marks in extent.marks]
            data = [column[marks[group] : marks[group + 1]] for column, marks in zip(columns, cuts, strict=True)]
            self.blocks[block] = Block(owner, first, extent.offset, pieces, data, writer)

    def fill(self, first: int, owner: str, columns: list[bytes], cuts: list[list[int]]) -> None:
        extent = self.store.blocks[first]
        for base, column in zip(extent.marks[:, 0].tolist(), columns, strict=True):
            for start in range(0, len(column), 3000):
                self.ask(b"bytes", m.Fill(owner=owner, block=first, start=base + start), column[start : start + 3000])

    def scribble(self, block: Block, data: list[bytes]) -> None:
        for (start, stop), piece in zip(block.pieces, data, strict=True):
            self.store.arena.array[block.offset + start : block.offset + stop] = np.frombuffer(piece, dtype=np.uint8)

    @precondition(lambda self: self.strays)
    @rule()
    def write_late(self) -> None:
        """A writer whose owner was swept does not know yet: it may hurt nobody."""
        for _, block in self.strays:
            self.scribble(block, [self.rng.bytes(len(piece)) for piece in block.data])

    # ------------------------------------------------------------ reading

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.blocks)), min_size=1, max_size=4))
        columns, expected = [], []
        for column in range(min(len(self.blocks[number].pieces) for number in numbers)):
            starts, stops, parts = [], [], []
            for number in numbers:
                low, high = self.blocks[number].pieces[column]
                start = data.draw(st.integers(low, high))
                stop = data.draw(st.integers(start, high))
                starts.append(start)
                stops.append(stop)
                parts.append(self.blocks[number].data[column][start - low : stop - low])
            columns.append(m.Ranges(numbers, starts, stops))
            expected.append(b"".join(parts))
        reply, frames = self.ask(b"bytes", m.Read(columns=columns))
        assert isinstance(reply, m.Found)
        assert [bytes(frame) for frame in frames] == expected
        self.through(numbers)

    @precondition(lambda self: self.readers and self.blocks)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(sorted(self.readers)))
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.blocks)), min_size=1, max_size=4))
        reply, _ = self.ask(sender, m.Hold(blocks=numbers))
        assert reply.offsets == [self.blocks[number].offset for number in numbers]
        self.readers[sender].holds[reply.hold] = [self.blocks[number] for number in numbers]
        self.through(numbers)

    def through(self, numbers: list[int]) -> None:
        """Who reads a block was told of it by its writer: nobody writes to the extent any more."""
        firsts = {self.blocks[number].first for number in numbers}
        for block in self.blocks.values():
            block.writer = None if block.first in firsts else block.writer

    @precondition(lambda self: any(reader.holds for reader in self.readers.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(sorted(name for name, reader in self.readers.items() if reader.holds)))
        holds = data.draw(st.lists(st.sampled_from(sorted(self.readers[sender].holds)), min_size=1, unique=True))
        others = [hold for name, reader in self.readers.items() for hold in reader.holds if name != sender]
        self.ask(sender, m.Release(holds=[*holds, *others, 10**9]))  # what is another's, or nobody's, is left alone
        for hold in holds:
            del self.readers[sender].holds[hold]

    # ------------------------------------------------------------ ends

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        held = {number for number, block in self.blocks.items() if any(block in blocks for blocks in self.held())}
        numbers = data.draw(st.lists(st.sampled_from(sorted(held or self.blocks or self.seen)), min_size=1, max_size=8))  # rather what is held
        numbers += data.draw(st.lists(st.sampled_from(sorted(self.seen)), max_size=2))
        self.ask(b"controller", m.Free(blocks=[*numbers, 2**63 - 1]))
        for number in numbers:
            self.blocks.pop(number, None)

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def sweep(self, name: str, data: st.DataObject) -> None:
        owner = self.owner(name)
        mine = sorted(number for number, block in self.blocks.items() if block.owner == owner)
        keep = data.draw(st.sets(st.sampled_from(mine), max_size=2)) if mine else set()
        self.ask(b"controller", m.Sweep(owner=owner, keep=sorted(keep)))
        for number in set(mine) - keep:
            block = self.blocks.pop(number)
            if block.writer is not None:
                self.strays.append((block.writer, block))
        self.incarnations[name] += 1
        with pytest.raises(Refused, match="declared dead"):
            self.ask(b"bytes", m.Reserve(owner=owner, cuts=[[0, 1]]))

    @rule()
    def cool(self) -> None:
        while self.answers.collect(3 * PAGE):
            pass

    # ------------------------------------------------------------ what always holds

    def held(self) -> Iterator[list[Block]]:
        for reader in self.readers.values():
            yield from reader.holds.values()

    def state(self) -> tuple[int, int, int, int]:
        store = self.store
        return store.used_bytes, store.extents, store.space.warm.nbytes, store.space.cold.nbytes

    @invariant()
    def the_books_are_exact(self) -> None:
        if not hasattr(self, "store"):
            return
        sizes = {number: sum(map(len, block.data)) for number, block in self.blocks.items()}
        assert self.store.used_bytes == sum(sizes.values()) <= CAPACITY
        assert self.store.blocks.keys() == sizes.keys()
        owners = {block.owner for block in self.blocks.values()}
        assert self.store.by_owner == {owner: {number for number, block in self.blocks.items() if block.owner == owner} for owner in owners}
        assert self.store.owned_bytes == {owner: sum(sizes[number] for number in self.store.by_owner[owner]) for owner in owners}

    @invariant()
    def what_is_stored_or_held_is_what_was_written(self) -> None:
        for block in [*self.blocks.values(), *itertools.chain(*self.held())]:
            for (start, stop), piece in zip(block.pieces, block.data, strict=True):
                assert self.store.arena.array[block.offset + start : block.offset + stop].tobytes() == piece

    @invariant()
    def nothing_that_is_used_is_free_and_no_two_extents_overlap(self) -> None:
        if not hasattr(self, "store"):
            return
        blocks = [*self.blocks.values(), *itertools.chain(*self.held()), *(block for _, block in self.strays)]
        used = {(block.first, block.offset + start, block.offset + stop) for block in blocks for start, stop in block.pieces}
        spans = sorted((begin, end) for _, begin, end in used if begin < end)
        spans += [*self.store.space.warm, *self.store.space.cold]
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for reader in self.readers.values():
            reader.process.kill()
            reader.process.wait()
        self.ask(b"controller", m.Free(blocks=sorted(self.blocks)))
        while self.answers.collect(1 << 30):
            pass
        store, keep = self.store, self.store.keep_bytes
        assert (store.used_bytes, store.held_bytes, store.extents, store.blocks, store.lingering, store.by_owner) == (0, 0, 0, {}, {}, {})
        assert store.space.warm.nbytes + store.space.cold.nbytes == store.arena.nbytes
        assert store.arena.resident_bytes() - self.empty_bytes <= min(keep, store.space.warm.nbytes)
        self.answers.close()


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
