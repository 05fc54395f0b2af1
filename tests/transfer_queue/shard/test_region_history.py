"""Any history of regions, against a model that is a dict of bytes: writers that are killed between any two steps of a put, swept, sealed or revoked.

Writers are real processes that are really killed; what they write is written here, step by step, by the code that they run. Readers look at memory
alone: they get the right bytes or none.
"""

from __future__ import annotations

import itertools
import subprocess
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transfer_queue.ahead import Room
from transfer_queue.codec import pack
from transfer_queue.columns import Jagged
from transfer_queue.layout import Extent, Layout
from transfer_queue.memory.glimpse import find, still_there
from transfer_queue.memory.mapping import mapping
from transfer_queue.shard import messages as m
from transfer_queue.shard.answers import Answers
from transfer_queue.shard.extent import PAGE
from transfer_queue.shard.refused import Refused
from transfer_queue.shard.region import BLOCKS, IN_REGION, INDEX_BITS, REGION_BYTES, TABLE_BYTES, begins_of, head_bytes, write_head
from transfer_queue.shard.regions import SHARE
from transfer_queue.shard.store import Store

OPEN = 4  # regions at a time
CAPACITY = (OPEN * SHARE + 1) * REGION_BYTES
NAMES = ("a", "b")
sizes = st.integers(0, 40) | st.integers(0, 3 * PAGE) | st.just(150_000)
tables = st.integers(1, 5).flatmap(lambda groups: st.lists(st.lists(sizes, min_size=groups, max_size=groups), min_size=1, max_size=3))
many = st.just([[3] * 900])


@dataclass
class Block:
    owner: str
    pieces: list[tuple[int, int]]  # in the extent
    data: list[bytes]


@dataclass
class Writer:
    process: subprocess.Popen[bytes]
    owner: str
    rooms: list[Room] = field(default_factory=list)


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, Block] = {}  # there, as far as anybody may know
        self.gone: dict[int, Block] = {}
        self.seen: set[int] = set()
        self.unseen: set[int] = set()  # of a put whose writer died before all of it was named: nobody but the shard knows them
        self.writers: dict[bytes, Writer] = {}
        self.holds: list[tuple[bytes, int, list[tuple[int, bytes]]]] = []
        self.incarnations = dict.fromkeys(NAMES, 0)
        self.numbers = itertools.count()

    @initialize(keep=st.sampled_from([0, REGION_BYTES, 2 * CAPACITY]), seed=st.integers(0, 2**32 - 1), life=st.integers(0, 3))
    def start(self, keep: int, seed: int, life: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.answers = Answers(Store(CAPACITY, keep))
        self.store = self.answers.store
        self.store.begin(life)
        self.memory = mapping(self.store.arena.descriptor())
        self.join("a")

    def ask(self, sender: bytes, request: m.ShardRequest, *frames: bytes) -> tuple:
        reply = self.answers.answer(sender, request, list(frames))
        return (None, ()) if reply is None else reply

    def owner(self, name: str) -> str:
        return f"{name}#{self.incarnations[name]}"

    # ------------------------------------------------------------ who writes

    @precondition(lambda self: len(self.writers) < 4)
    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        sender, process = b"%d" % next(self.numbers), subprocess.Popen(["sleep", "600"])
        self.writers[sender] = Writer(process, self.owner(name))
        self.ask(sender, m.Join(owner=self.owner(name), pid=process.pid))

    @rule(data=st.data())
    def reserve_ahead(self, data: st.DataObject) -> None:
        if not self.writers:
            return
        sender = data.draw(st.sampled_from(sorted(self.writers)))
        writer = self.writers[sender]
        stale = writer.owner not in [self.owner(name) for name in NAMES]
        try:
            reply, _ = self.ask(sender, m.ReserveAhead(owner=writer.owner))
        except Refused as refused:
            full = len(self.store.regions._open) == OPEN
            assert refused.code in {"stale_owner"} if stale else {"too_many", "capacity"} if full or len(writer.rooms) >= 2 else set()  # noqa: PT017
            return
        assert not stale
        writer.rooms.append(Room(self.memory, reply))

    def some_writer(self, data: st.DataObject) -> tuple[bytes, Writer] | None:
        having = sorted(sender for sender, writer in self.writers.items() if writer.rooms)
        if not having:
            return None
        sender = data.draw(st.sampled_from(having))
        return sender, self.writers[sender]

    # ------------------------------------------------------------ bytes

    def extent(self, table: list[list[int]]) -> tuple[Extent, list[bytes]]:
        columns = [self.rng.bytes(sum(row)) for row in table]
        packed = {
            str(at): pack(str(at), Jagged(np.frombuffer(column, dtype=np.uint8), np.cumsum([0, *row])))
            for at, (column, row) in enumerate(zip(columns, table, strict=True))
        }
        return Extent(Layout.of(range(len(table[0]))), packed), columns

    def note(self, first: int, owner: str, extent: Extent, columns: list[bytes]) -> None:
        for group in range(extent.layout.groups):
            block = first + group
            assert block not in self.seen, "a number was used twice"
            self.seen.add(block)
            pieces = [(base + marks[group], base + marks[group + 1]) for base, marks in zip(extent.bases, extent.cuts, strict=True)]
            data = [column[marks[group] : marks[group + 1]] for column, marks in zip(columns, extent.cuts, strict=True)]
            self.blocks[block] = Block(owner, pieces, data)

    @rule(table=tables | many, data=st.data())
    def put(self, table: list[list[int]], data: st.DataObject) -> None:
        found = self.some_writer(data)
        if found is None:
            return
        sender, writer = found
        room = data.draw(st.sampled_from(writer.rooms))
        extent, columns = self.extent(table)
        blocks = room.put(extent)
        if blocks is not None and room.revoked:
            self.ask(sender, m.Free(blocks=list(blocks)))
        elif blocks is not None and writer.owner in [self.owner(name) for name in NAMES]:  # else it was swept: nobody will name these
            self.note(blocks[0], writer.owner, extent, columns)

    @rule(table=tables, how=st.sampled_from(["copied", "cut", "seen in part"]), data=st.data())
    def killed_in_a_put(self, table: list[list[int]], how: str, data: st.DataObject) -> None:
        found = self.some_writer(data)
        if found is None:
            return
        sender, writer = found
        room = writer.rooms[-1]
        extent, columns = self.extent(table)
        groups, first = extent.layout.groups, room.used
        begin = room._end + head_bytes(len(extent.cuts), groups)
        if begin + extent.nbytes <= REGION_BYTES and first + groups <= BLOCKS:
            extent.fill(room._memory[begin : begin + extent.nbytes])
            if how != "copied":
                write_head(room._memory, begin, first, np.array(extent.cuts, dtype=np.uint32))
            if how == "seen in part":
                some = data.draw(st.integers(1, groups))
                begins_of(room._memory)[first : first + some] = begin
                if writer.owner in [self.owner(name) for name in NAMES]:
                    base = (room.region << INDEX_BITS) + first
                    self.note(base, writer.owner, extent, columns)
                    self.unseen.update(range(base + some, base + groups))
        self.kill(sender)

    @rule(name=st.sampled_from(NAMES), table=tables)
    def write_the_ordinary_way(self, name: str, table: list[list[int]]) -> None:
        extent, columns = self.extent(table)
        reply, _ = self.ask(b"bytes", m.Write(owner=self.owner(name), cuts=extent.cuts), *columns)
        assert not reply.first & IN_REGION
        self.note(reply.first, self.owner(name), extent, columns)

    @rule()
    def revoke(self) -> None:
        """A shard that drains, or needs the room."""
        assert self.answers.is_drained() == (not self.blocks)
        assert self.store.regions.ahead_bytes == 0

    # ------------------------------------------------------------ reading

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def look_at_memory_alone(self, data: st.DataObject) -> None:
        """Of what is there and what is not, in one read or each by itself."""
        numbers = data.draw(st.lists(st.sampled_from(sorted(number for number in self.seen if number & IN_REGION) or [-1]), max_size=4))
        for some in ([number] for number in numbers):
            self.glimpse(some)
        if numbers:
            self.glimpse(numbers)

    def glimpse(self, numbers: list[int]) -> None:
        blocks = np.array(numbers, dtype=np.int64)
        begins = find(self.memory, blocks)
        if begins is not None:
            copies = [self.copy(begin, number) for begin, number in zip(begins.tolist(), numbers, strict=True)]
        if begins is None or not still_there(self.memory, blocks):
            assert any(number not in self.blocks or number in self.unseen for number in numbers)
            return
        for number, copy in zip(numbers, copies, strict=True):
            assert copy == self.blocks[number].data

    def copy(self, begin: int, number: int) -> list[bytes]:
        pieces = (self.blocks.get(number) or self.gone[number]).pieces
        return [self.memory.readable[begin + start : begin + stop].tobytes() for start, stop in pieces]

    @precondition(lambda self: self.writers and self.blocks)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from(sorted(self.writers)))
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.blocks)), min_size=1, max_size=3))
        reply, _ = self.ask(sender, m.Hold(blocks=numbers))
        places = [
            (offset + start, piece)
            for number, offset in zip(numbers, reply.offsets, strict=True)
            for (start, _), piece in zip(self.blocks[number].pieces, self.blocks[number].data, strict=True)
        ]
        self.holds.append((sender, reply.hold, places))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sender, hold, _ = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        self.ask(sender, m.Release(holds=[hold]))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.blocks)))
        ranges = [m.Ranges([number], [start], [stop]) for start, stop in self.blocks[number].pieces]
        reply, frames = self.ask(b"bytes", m.Read(columns=ranges))
        assert isinstance(reply, m.Found)
        assert [bytes(frame) for frame in frames] == self.blocks[number].data

    # ------------------------------------------------------------ ends

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), all=st.booleans())
    def free(self, data: st.DataObject, all: bool) -> None:
        some = st.lists(st.sampled_from(sorted(self.seen)), min_size=1, max_size=8)
        numbers = sorted(self.blocks) if all else data.draw(some)
        self.ask(b"controller", m.Free(blocks=[*numbers, -1, IN_REGION, 2**63 - 1]))
        self.forget(numbers)
        if numbers:
            assert isinstance(self.ask(b"bytes", m.Read(columns=[m.Ranges(numbers[:1], [0], [0])]))[0], m.NotFound)

    def forget(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self.blocks:
                self.gone[number] = self.blocks.pop(number)

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def sweep(self, name: str, data: st.DataObject) -> None:
        owner = self.owner(name)
        mine = sorted(number for number, block in self.blocks.items() if block.owner == owner)
        keep = data.draw(st.sets(st.sampled_from(mine), max_size=3)) if mine else set()
        self.ask(b"controller", m.Sweep(owner=owner, keep=sorted(keep)))
        self.forget(sorted(set(mine) - keep))
        self.incarnations[name] += 1
        with pytest.raises(Refused, match="declared dead"):
            self.ask(b"bytes", m.ReserveAhead(owner=owner))

    @rule(data=st.data(), whole=st.booleans())
    def seal(self, data: st.DataObject, whole: bool) -> None:
        found = self.some_writer(data)
        if found is None:
            return
        sender, writer = found
        other = next((name for name in self.writers if name != sender), b"stranger")
        self.ask(other, m.Seal(region=writer.rooms[0].region))  # it is none of theirs
        self.ask(sender, m.Seal(region=None if whole else writer.rooms[0].region))
        writer.rooms = [] if whole else writer.rooms[1:]

    @rule(data=st.data())
    def kill_one(self, data: st.DataObject) -> None:
        if self.writers:
            self.kill(data.draw(st.sampled_from(sorted(self.writers))))

    def kill(self, sender: bytes) -> None:
        process = self.writers.pop(sender).process
        process.kill()
        process.wait()
        self.holds = [held for held in self.holds if held[0] != sender]
        self.answers.collect(0)

    @rule()
    def cool(self) -> None:
        while self.answers.collect(1 << 20):
            pass

    @rule()
    def status(self) -> None:
        reply, _ = self.ask(b"observer", m.ShardStatus())
        rooms = sum(len(writer.rooms) for writer in self.writers.values())
        assert reply.used_bytes == sum(len(piece) for block in self.blocks.values() for piece in block.data)
        assert reply.blocks == len(self.blocks)
        assert 0 <= reply.ahead_bytes <= rooms * REGION_BYTES
        assert self.store.by_owner.keys() == {block.owner for block in self.blocks.values()}

    # ------------------------------------------------------------ what always holds

    @invariant()
    def what_is_held_never_changes(self) -> None:
        for _, _, places in self.holds:
            for begin, piece in places:
                assert self.store.arena.array[begin : begin + len(piece)].tobytes() == piece

    @invariant()
    def no_byte_is_two_extents_or_free_and_used(self) -> None:
        if not hasattr(self, "store"):
            return
        spans = [*self.store.space.warm, *self.store.space.cold]
        for region in self.store.regions._all.values():
            opened = region.number in self.store.regions._open
            spans += [(begin, begin + nbytes) for begin, nbytes in region.rests()] if opened else []
            spans.append((region.begin, region.begin + 64))
        for extent in {*self.store.blocks.values(), *self.store.lingering.values()}:
            spans.append((extent.offset - extent.head, extent.offset))
            left = [block for block in extent.blocks if block in self.store.blocks or block in self.store.lingering]
            for marks in extent.marks:
                spans += [(extent.offset + int(marks[b - extent.first]), extent.offset + int(marks[b - extent.first + 1])) for b in left]
        spans = sorted((begin, end) for begin, end in spans if begin < end)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for sender in list(self.writers):
            self.kill(sender)
        self.status()
        self.ask(b"controller", m.Free(blocks=sorted(self.blocks)))
        while self.answers.collect(1 << 30):
            pass
        store, regions = self.store, self.store.regions
        assert (store.used_bytes, store.held_bytes, store.extents, store.blocks, store.lingering, store.by_owner) == (0, 0, 0, {}, {}, {})
        assert (regions.ahead_bytes, regions._all, regions._open) == (0, {}, {})
        table = 0 if regions._table is None else TABLE_BYTES
        assert store.space.warm.nbytes + store.space.cold.nbytes == store.arena.nbytes - table
        self.answers.close()


TestRegionHistory = History.TestCase
TestRegionHistory.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
