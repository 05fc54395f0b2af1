"""Any history of keyed partitions, against a model that is a dict: what is found, in which order, and which blocks are freed, each once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from keyed_desk import BYTES, RUN, SCALAR, TEXT, KeyedDesk, tag_of

from transfer_queue import messages as m
from transfer_queue.controller.core import Core
from transfer_queue.controller.run import FrozenRun
from transfer_queue.frozen import from_bytes, to_bytes

PARTITIONS = st.sampled_from(["train", "val"])
KEYS = st.lists(st.sampled_from([f"key-{at}" for at in range(6)]), min_size=1, max_size=5, unique=True)
NAMES = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=3, unique=True)
TYPES = st.lists(st.sampled_from([SCALAR, RUN, TEXT]), min_size=5, max_size=5)
TAGS = st.none() | st.lists(st.none() | st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), max_size=2), min_size=5, max_size=5)
FEW = st.integers(1, 4)
WRONG = ["twice", "nothing", "both", "length", "place", "bytes", "tag", "tags"]
Cell = tuple[m.CellType, tuple[int, ...]]  # and its place


@dataclass
class Row:
    number: int
    tag: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def _packs_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of cleared keys are given back after a few."""
    monkeypatch.setattr("transfer_queue.controller.keyed.partition.FEW_SLOTS", 2)
    monkeypatch.setattr("transfer_queue.controller.keyed.partition.SPARSE", 1)


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = KeyedDesk(heartbeat_s=1e9, stall_s=1e9)
        self.model: dict[str, dict[str, Row]] = {}
        self.numbers: list[tuple[str, int]] = []  # every one that was ever given, with its partition
        self.had: dict[tuple[str, str], set[int]] = {}  # (partition, task) → numbers
        self.sent: set[int] = set()  # blocks that requests named
        self.freed: set[int] = set()

    # ------------------------------------------------------------ what is done

    @rule(partition=PARTITIONS, keys=KEYS, names=NAMES, types=TYPES, tags=TAGS)
    def put(self, partition: str, keys: list[str], names: list[str], types: list[m.CellType], tags: list[dict[str, int] | None] | None) -> None:
        rows = self.model.setdefault(partition, {})
        columns, cells = self.columns(names, types, len(keys))
        reply = self.ask(m.OkKeyed, self.desk.put_request(partition, keys=keys, columns=columns, tags=packed(tags, len(keys))))
        for key, number in zip(keys, m.unpacked(reply.numbers).tolist(), strict=True):
            if key not in rows:
                assert (partition, number) not in self.numbers, "a number was given twice"
                assert all(number > given for _, given in self.numbers)
                self.numbers.append((partition, number))
                rows[key] = Row(number)
            assert rows[key].number == number
        self.written(reply, [rows[key] for key in keys], cells, tags)

    @rule(data=st.data(), names=NAMES, types=TYPES, tags=TAGS)
    def put_by_numbers(self, data: st.DataObject, names: list[str], types: list[m.CellType], tags: list[dict[str, int] | None] | None) -> None:
        """Numbers of anything that was ever there, late ones too."""
        if not self.numbers:
            return
        partition = data.draw(PARTITIONS)
        numbers = data.draw(st.lists(st.sampled_from([number for _, number in self.numbers]), min_size=1, max_size=5, unique=True))
        by_number = {row.number: row for row in self.model.get(partition, {}).values()}
        columns, cells = self.columns(names, types, len(numbers))
        request = self.desk.put_request(partition, numbers=m.packed(numbers), columns=columns, tags=packed(tags, len(numbers)))
        reply = self.ask(m.OkKeyed, request)
        assert m.unpacked(reply.numbers).tolist() == [number if number in by_number else -1 for number in numbers]
        self.written(reply, [by_number.get(number) for number in numbers], cells, tags)

    @rule(partition=PARTITIONS, keys=KEYS, by_number=st.booleans())
    def clear(self, partition: str, keys: list[str], by_number: bool) -> None:
        rows = self.model.get(partition, {})
        there = [key for key in keys if key in rows]
        if by_number and not there:
            return
        named = {"numbers": m.packed([rows[key].number for key in there])} if by_number else {"keys": keys}
        reply = self.ask(m.OkCleared, m.KeyedClear(partition=partition, **self.desk.who.fields, **named))  # type: ignore[arg-type]
        assert reply.cleared == len(there)
        for key in there:
            del rows[key]
        if not rows:
            self.had = {name: numbers for name, numbers in self.had.items() if name[0] != partition}

    @rule(partition=PARTITIONS, keys=KEYS, names=st.none() | NAMES)
    def look(self, partition: str, keys: list[str], names: list[str] | None) -> None:
        rows = self.model.get(partition, {})
        reply = self.desk.look(partition, keys, names=None if names is None else tuple(names), tags=True)
        there = [key for key in keys if key in rows]
        assert [keys[at] for at in m.unpacked(reply.found).tolist()] == there
        assert m.unpacked(reply.numbers).tolist() == [rows[key].number for key in there]
        assert [tag_of(tag) for tag in reply.tags] == [rows[key].tag for key in there]
        common = common_of([rows[key] for key in there])
        assert reply.names == common
        assert list(reply.columns) == [name for name in (common if names is None else names) if name in common]
        for name, cells in reply.columns.items():
            assert cells_of(cells) == [rows[key].cells[name] for key in there]

    @rule(partition=PARTITIONS, task=st.sampled_from(["train", "judge"]), names=NAMES, limit=FEW, least=FEW, lost=st.booleans())
    def take(self, partition: str, task: str, names: list[str], limit: int, least: int, lost: bool) -> None:
        """`lost`: the reply never comes to the taker."""
        rows, had = self.model.get(partition, {}), self.had.setdefault((partition, task), set())
        ready = [key for key, row in rows.items() if row.number not in had and row.cells.keys() >= set(names)]
        expected = ready[:limit] if len(ready) >= min(least, limit) else []
        request = self.desk.take_request(task, limit, names, partition=partition, at_least=min(least, limit))
        reply = self.ask(m.OkKeyedTaken, request)
        assert reply.keys == expected
        if lost:
            self.desk.core.undelivered(self.desk.who.connection, reply)
        else:
            had |= set(m.unpacked(reply.numbers).tolist())

    @rule(partition=PARTITIONS, keys=KEYS, types=TYPES, wrong=st.sampled_from(WRONG))
    def refused(self, partition: str, keys: list[str], types: list[m.CellType], wrong: str) -> None:
        """It changes nothing, and what it names is freed."""
        blocks = [self.desk.block() for _ in keys]
        columns = {"a": self.desk.cells(types[: len(keys)], blocks)}
        fields: dict[str, Any] = {"keys": keys, "columns": columns}
        cells, block = columns["a"], self.desk.block()
        if wrong == "twice":
            fields = {"keys": [*keys, keys[0]], "columns": {}}
        elif wrong == "nothing":
            fields["keys"] = []
        elif wrong == "both":
            fields["numbers"] = m.packed([1])
        elif wrong == "length":
            fields["keys"] = [*keys, "one-more"]
        elif wrong == "place":
            fields["columns"] = {"a": msgspec.structs.replace(cells, places=m.packed([(0, block, 4, 0)] * len(keys)))}
        elif wrong == "bytes":
            fields["columns"] = {"a": m.Cells((RUN,), m.packed([(0, block, 0, 5)] * len(keys)))}
        else:
            fields["tags"] = [b"\x93"] * len(keys) if wrong == "tag" else [b""] * (len(keys) + 1)
        self.desk.refuse(self.desk.who.connection, self.desk.put_request(partition, **fields))
        named = blocks_of(fields["columns"])
        self.sent |= named
        assert self.take_frees() == named

    @rule()
    def comes_back(self) -> None:
        """Another state machine goes on where this one was frozen."""
        self.take_frees()
        frozen = to_bytes(self.desk.core.freeze())
        self.desk.core = Core(self.desk.config, self.desk.log, self.desk.clock)
        self.desk.core.thaw(from_bytes(FrozenRun, frozen))
        assert to_bytes(self.desk.core.freeze()) == frozen

    # ------------------------------------------------------------ what holds

    @invariant()
    def lists_are_the_model_in_order(self) -> None:
        expected = {name: {key: row.tag for key, row in rows.items()} for name, rows in self.model.items() if rows}
        found = self.desk.listed()
        assert found == expected
        assert {name: list(rows) for name, rows in found.items()} == {name: list(rows) for name, rows in expected.items()}

    @invariant()
    def blocks_live_as_long_as_they_are_named(self) -> None:
        self.take_frees()
        named = {place[1] for rows in self.model.values() for row in rows.values() for _, place in row.cells.values()}
        assert set(self.desk.live()) == named
        assert self.sent - named == self.freed, "a block is named, or it was freed"

    # ------------------------------------------------------------ inside

    def ask(self, kind: type[Any], request: m.Request) -> Any:
        return self.desk.ask(self.desk.who.connection, request, kind)

    def take_frees(self) -> set[int]:
        freed = self.desk.freed()
        assert len(freed) == len(set(freed))
        assert not self.freed & set(freed), "a block was freed twice"
        self.freed |= set(freed)
        return set(freed)

    def columns(self, names: list[str], types: list[m.CellType], rows: int) -> tuple[dict[str, m.Cells], list[dict[str, Cell]]]:
        """Each row in a block of its own, as `write` stores it; and the cells row by row."""
        blocks = [self.desk.block() for _ in range(rows)]
        columns = {name: self.desk.cells(types[at:rows] + types[:at], blocks[: rows]) for at, name in enumerate(names) if at < rows}
        self.sent |= blocks_of(columns)
        return columns, [{name: cells_of(cells)[at] for name, cells in columns.items()} for at in range(rows)]

    def written(self, reply: m.OkKeyed, rows: list[Row | None], cells: list[dict[str, Cell]], tags: list[dict[str, int] | None] | None) -> None:
        for at, row in enumerate(rows):
            if row is not None:
                row.cells |= cells[at]
                row.tag |= (tags[at] or {}) if tags is not None else {}
        assert [tag_of(tag) for tag in reply.tags] == [{} if row is None else row.tag for row in rows]
        assert reply.names == common_of([row for row in rows if row is not None])


def blocks_of(columns: dict[str, m.Cells]) -> set[int]:
    return {block for cells in columns.values() for block in m.places(cells.places)[:, 1].tolist()}


def packed(tags: list[dict[str, int] | None] | None, rows: int) -> list[bytes]:
    return [] if tags is None else [b"" if tag is None else msgspec.msgpack.encode(tag) for tag in tags[:rows]]


def common_of(rows: list[Row]) -> list[str]:
    return sorted(set.intersection(*(set(row.cells) for row in rows))) if rows else []


def cells_of(cells: m.Cells) -> list[Cell]:
    places = [tuple(place) for place in m.places(cells.places).tolist()]
    which = m.unpacked(cells.which).tolist() if cells.which else [0] * len(places)
    found = [(cells.types[at], place) for at, place in zip(which, places, strict=True)]
    assert all(place[3] - place[2] == BYTES[kind] for kind, place in found)
    return found


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
