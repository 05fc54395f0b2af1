"""What a member may ask of keyed partitions, one request at a time, and what it costs."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from controller_desk import plain
from keyed_desk import RUN, SCALAR, TEXT, KeyedDesk, tag_of

from transfer_queue import messages as m
from transfer_queue.codec.objects import pack_objects, unpack_objects
from transfer_queue.codec.packed import offsets_of
from transfer_queue.controller.keyed import handling, tags

ROUNDS, CYCLES, BATCH = 7, 20, 16


def test_what_is_put_by_number_after_a_clear_is_written_nowhere_also_when_the_key_is_there_again() -> None:
    desk = KeyedDesk()
    reply, first = desk.put("train", ["a", "b"], {"x": SCALAR}, [{"n": 1}, {"n": 2}])
    assert desk.clear("train", ["a"]) == 1
    again, second = desk.put("train", ["a"], {"x": SCALAR})
    assert desk.freed() == first[:1]
    late = desk.block(), desk.block()
    fields = {"numbers": reply.numbers, "columns": {"x": desk.cells([SCALAR, SCALAR], late)}, "tags": [msgspec.msgpack.encode({"n": 9})] * 2}
    written = desk.ask(desk.who.connection, desk.put_request("train", **fields), m.OkKeyed)
    assert m.unpacked(written.numbers).tolist() == [-1, m.unpacked(reply.numbers)[1]]
    assert desk.listed() == {"train": {"b": {"n": 9}, "a": {}}}
    assert sorted(desk.freed()) == sorted([late[0], first[1]]), "the late cell, and the one that was overwritten"
    assert m.places(desk.look("train", ["a"]).columns["x"].places)[:, 1].tolist() == second
    assert m.unpacked(again.numbers)[0] > m.unpacked(reply.numbers).max()


def test_rows_of_one_column_may_differ_and_come_back_as_they_were_put() -> None:
    desk = KeyedDesk()
    desk.put("train", ["a"], {"x": SCALAR})
    desk.put("train", ["b"], {"x": RUN})
    desk.put("train", ["c"], {"x": TEXT})
    cells = desk.look("train", ["c", "a", "b", "a"]).columns["x"]
    assert [cells.types[at] for at in m.unpacked(cells.which).tolist()] == [TEXT, SCALAR, RUN, SCALAR]
    desk.put("train", ["b", "c"], {"x": SCALAR})
    assert desk.look("train", ["a", "b", "c"]).columns["x"].types == (SCALAR,)


def test_only_columns_that_all_keys_have_are_told_and_a_name_that_some_key_lacks_is_left_out() -> None:
    desk = KeyedDesk()
    desk.put("train", ["a"], {"y": SCALAR, "x": SCALAR})
    reply, _ = desk.put("train", ["a", "b"], {"x": SCALAR})
    assert reply.names == ["x"]
    found = desk.look("train", ["b", "nobody", "a"], names=("y", "x"))
    assert m.unpacked(found.found).tolist() == [0, 2]
    assert list(found.columns) == ["x"]
    assert desk.look("train", ["a"], names=()).names == ["x", "y"]
    assert desk.look("train", ["nobody"]).found == b""


def test_a_partition_ends_with_its_last_key_and_a_list_of_what_does_not_exist_is_empty() -> None:
    desk = KeyedDesk()
    desk.put("train", ["a"])
    desk.put("val", ["b"], tags=[{"k": 1}])
    assert desk.clear("train", ["a", "a", "nobody"]) == 1
    assert desk.listed() == {"val": {"b": {"k": 1}}}
    assert desk.listed("train", "val", "test") == {"val": {"b": {"k": 1}}}
    assert desk.clear("train", ["a"]) == 0
    assert desk.core.status().partitions == [m.PartitionStatus("val", 1, 0, 0)]


def test_tags_are_merged_as_they_are_whatever_their_values_hold() -> None:
    desk = KeyedDesk()
    desk.put("train", ["a"], tags=[{"deep": [1, {"x": b"y"}], "n": 1}])
    reply, _ = desk.put("train", ["a"], tags=[{"n": 2.5, "more": None}])
    assert tag_of(reply.tags[0]) == {"deep": [1, {"x": b"y"}], "n": 2.5, "more": None}
    large = msgspec.msgpack.encode({"big": b"x" * tags.MOST_BYTES})
    assert "Put what is large into a column" in desk.refuse(desk.who.connection, desk.put_request("train", keys=["a"], tags=[large]))
    for wrong in (b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({1: 2}), b"\x81\xa1a\x93"):
        assert "no dict with str keys" in desk.refuse(desk.who.connection, desk.put_request("train", keys=["a"], tags=[wrong]))
    assert desk.listed()["train"]["a"]["n"] == 2.5


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"keys": ["x" * (handling.MOST_NAME + 1)]}, "characters"),
        ({"keys": [""]}, "characters"),
        ({"partition": ""}, "partition=''"),
        ({"columns": {"": None}}, "column=''"),
        ({"columns": {"x": m.Cells((), m.packed([(0, 1, 0, 4)]))}}, "`which`"),
        ({"columns": {"x": m.Cells((SCALAR,), m.packed([(0, 1, 0, 4)]), m.packed([1]))}}, "`which`"),
        ({"columns": {"x": m.Cells((m.CellType("scalar", "float33"),), m.packed([(0, 1, 0, 4)]))}}, "float33"),
        ({"columns": {"x": m.Cells((m.CellType("scalar", "uint8", (1,) * 99),), m.packed([(0, 1, 0, 1)]))}}, "99 axes"),
        ({"columns": {"x": m.Cells((SCALAR,), m.packed([(-1, 0, 0, 0)]))}}, "no place"),
        ({"keys": [], "numbers": b"1234"}, "numbers"),
    ],
)
def test_a_put_that_breaks_a_rule_is_refused_by_name_and_changes_nothing(change: dict[str, Any], part: str) -> None:
    desk = KeyedDesk()
    if change.get("columns") == {"": None}:
        change = {"columns": {"": desk.cells([SCALAR], [desk.block()])}}
    good = desk.put_request("train", keys=["a"])
    assert part in desk.refuse(desk.who.connection, msgspec.structs.replace(good, **change))
    assert desk.listed() == {}


def test_a_partition_has_a_bounded_number_of_columns_keys_and_types(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    for name, most in (("MOST_PARTITIONS", 2), ("MOST_COLUMNS", 2), ("MOST_KEYS", 3)):
        monkeypatch.setattr(handling, name, most)
    monkeypatch.setattr("transfer_queue.controller.keyed.cells.MOST_TYPES", 2)
    desk.put("train", ["a", "b"], {"x": SCALAR, "y": RUN})
    desk.put("train", ["a"], {"x": RUN})
    refused = desk.who.connection, desk.cells([SCALAR], [desk.block()])
    assert "2 columns" in desk.refuse(refused[0], desk.put_request("train", keys=["a"], columns={"z": refused[1]}))
    assert "2 keys" in desk.refuse(refused[0], desk.put_request("train", keys=["c", "d"]))
    assert "types of cells" in desk.refuse(refused[0], desk.put_request("train", keys=["a"], columns={"x": desk.cells([TEXT], [desk.block()])}))
    desk.put("val", ["a"])
    assert "one of the others" in desk.refuse(refused[0], desk.put_request("test", keys=["a"]))


def test_who_never_joined_is_not_served() -> None:
    desk = KeyedDesk()
    stranger = msgspec.structs.replace(desk.put_request("train", keys=["a"]), member="stranger")
    desk.refuse(desk.who.connection, stranger, "unknown_member")
    assert desk.listed() == {}


def nested(depth: int) -> bytes:
    """{"a": [[[…1…]]]}"""
    return b"\x81\xa1a" + b"\x91" * depth + b"\x01"


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        (nested(50_000), "every reader"),
        (nested(tags.MOST_DEPTH), "deep"),
        (b"\x81\xa1a\xa1\xff", "every reader"),  # a str that is no UTF-8
        (b"\x81\xa1a\xd4\x63\x00", "extension 99"),
        (b"\x81\xa1a" + msgspec.msgpack.encode(msgspec.msgpack.Ext(2, msgspec.msgpack.encode(("float32", [3], b"1234")))), "every reader"),
        (b"\x81\xa1a" + msgspec.msgpack.encode(msgspec.msgpack.Ext(2, msgspec.msgpack.encode(("float32", [2**63], b"1234")))), "every reader"),
        (b"\x81\xa1a" + msgspec.msgpack.encode(msgspec.msgpack.Ext(4, msgspec.msgpack.encode(("float33", [1], b"1234")))), "float33"),
        (nested(1 << 21), "exceeds"),
    ],
)
def test_a_tag_that_some_reader_could_not_unpack_is_refused_and_the_cells_of_its_put_are_freed(wrong: bytes, part: str) -> None:
    desk = KeyedDesk()
    desk.put("train", ["good"], tags=[{"n": 1}])
    block = desk.block()
    put = desk.put_request("train", keys=["bad"], columns={"x": desk.cells([SCALAR], [block])}, tags=[wrong])
    assert part in desk.refuse(desk.who.connection, put)
    assert desk.freed() == [block]
    assert desk.listed() == {"train": {"good": {"n": 1}}}


def test_a_tag_of_every_type_that_clients_pack_is_taken() -> None:
    desk = KeyedDesk()
    values = [{"a": (1, (2, None)), "b": [np.arange(3)], "c": np.float32(1), "d": torch.zeros(2, dtype=torch.bfloat16), "e": {(1, "x"): b"y"}}]
    packed = pack_objects("tags", values)
    reply = desk.ask(desk.who.connection, desk.put_request("train", keys=["a"], tags=[packed.values.tobytes()]), m.OkKeyed)
    (back,) = unpack_objects("tags", np.frombuffer(reply.tags[0], dtype=np.uint8), offsets_of([len(reply.tags[0])]))
    assert back["a"] == (1, (2, None))
    assert back["d"].dtype == torch.bfloat16


# ------------------------------------------------------------ take


def test_a_task_gets_each_row_once_in_the_order_in_which_the_keys_were_made() -> None:
    desk = KeyedDesk()
    desk.put("train", ["a", "b", "c"], {"x": SCALAR})
    desk.put("train", ["c", "a"], {"y": SCALAR})
    assert desk.take("grade", 2, ["x"]) == ["a", "b"]
    assert desk.take("train", 5, ["x", "y"]) == ["a", "c"]
    desk.put("train", ["a", "d"], {"x": SCALAR})
    assert desk.take("grade", 5, ["x"]) == ["c", "d"], "what it has had does not come again when it is overwritten"
    assert desk.take("grade", 5, ["y"]) == []
    desk.put("train", ["b"], {"y": SCALAR})
    assert desk.take("train", 5, ["x", "y"], at_least=2) == []
    desk.clear("train", ["a"])
    desk.put("train", ["a"], {"x": SCALAR, "y": SCALAR})
    assert desk.take("train", 5, ["x", "y"], at_least=2) == ["b", "a"], "a key that was cleared and put again is another row"
    assert desk.core.status().partitions[0].tasks == {"grade": 1, "train": 0}, "the new row has `y`"


def test_a_take_waits_for_rows_also_of_a_partition_that_is_not_there_yet() -> None:
    desk = KeyedDesk(heartbeat_s=1e9)
    asked = desk.send(desk.who.connection, desk.take_request("grade", 4, ["x"], at_least=2, wait_s=30.0))
    desk.put("train", ["a"], {"x": SCALAR})
    desk.put("train", ["b"])
    assert asked not in desk.replies
    desk.put("train", ["b"], {"x": SCALAR})
    assert desk.replies[asked].keys == ["a", "b"]
    late = desk.send(desk.who.connection, desk.take_request("grade", 4, ["x"], wait_s=5.0))
    desk.wait(5.0)
    assert (desk.replies[late].keys, desk.replies[late].done) == ([], False)
    last = desk.send(desk.who.connection, desk.take_request("grade", 4, ["x"]))
    waits = desk.send(desk.who.connection, desk.take_request("grade", 4, ["x"], wait_s=60.0))
    assert desk.replies[last].keys == []
    desk.ask(b"x", m.Stop(reason="over"), m.OkEmpty)
    assert desk.replies[waits].done


def test_rows_whose_reply_never_came_to_their_taker_are_given_again() -> None:
    desk = KeyedDesk()
    desk.put("train", ["a", "b"], {"x": SCALAR})
    reply = desk.ask(desk.who.connection, desk.take_request("grade", 1, ["x"]), m.OkKeyedTaken)
    desk.core.undelivered(desk.who.connection, reply)
    assert desk.take("grade", 5, ["x"]) == ["a", "b"]
    assert "at_least=3" in desk.refuse(desk.who.connection, desk.take_request("grade", 2, at_least=3))


# ------------------------------------------------------------ a lost shard


def test_cells_that_went_with_their_shard_are_told_by_name_until_they_are_put_again() -> None:
    desk = KeyedDesk(heartbeat_s=1e9)
    shard = desk.join("shard-0", "shard", shard="tcp://127.0.0.1:1")
    desk.join("shard-1", "shard", shard="tcp://127.0.0.1:2")
    desk.put("train", ["a", "b"], {"x": SCALAR}, shard=0)
    desk.put("train", ["a", "b"], {"y": SCALAR}, [{"n": 1}, {"n": 2}], shard=1)
    assert desk.take("grade", 1, ["x"]) == ["a"]
    desk.ask(b"launcher", m.MemberDead(member="shard-0", incarnation=-1, cause="killed"), m.OkEmpty)
    assert [(event.topic, event.reason, event.data["cells"]) for event in desk.log.of("keyed")] == [("train", "shard_lost", 2)]
    fields = {"keys": ["a", "b"], **desk.who.fields}
    message = desk.refuse(desk.who.connection, m.KeyedLook(partition="train", **fields), "shard_lost")
    assert "'x' of keys ['a', 'b']" in message
    assert "put it again" in message
    assert list(desk.look("train", ["a", "b"], names=("y",)).columns) == ["y"]
    assert desk.listed() == {"train": {"a": {"n": 1}, "b": {"n": 2}}}
    assert desk.take("grade", 5, ["x"]) == [], "what is lost is not ready"
    dead = desk.put_request("train", keys=["a"], columns={"x": desk.cells([SCALAR], [desk.block()])})
    desk.refuse(desk.who.connection, dead, "shard_lost")
    desk.put("train", ["a", "b"], {"x": SCALAR}, shard=1)
    assert list(desk.look("train", ["a", "b"]).columns) == ["x", "y"]
    assert desk.take("grade", 5, ["x"]) == ["b"]
    desk.clear("train", ["a", "b"])
    assert desk.live(0) == [] == desk.live(1)
    assert shard.incarnation == 0


# ------------------------------------------------------------ a queue of partitions alone


def test_a_queue_of_partitions_alone_neither_stalls_nor_completes_and_ends_no_silent_member_but_a_shard() -> None:
    desk = KeyedDesk([], keyed_only=True, heartbeat_s=10.0, stall_s=60.0)
    desk.put("train", ["a"], {"x": SCALAR})
    desk.join("shard-0", "shard", shard="tcp://127.0.0.1:1")
    for _ in range(100):
        desk.wait(10.0)
    assert desk.core.status().state == "run"
    assert list(desk.core.status().members) == ["writer#0"]
    assert not desk.log.of("stall") + desk.log.of("slow")
    waits = desk.ask(b"x", m.Status(waits=True), m.OkStatus).waits
    assert waits is not None
    assert "no other shard" in waits.blame.verdict
    desk.ask(b"launcher", m.MemberDead(member="writer", incarnation=-1, cause="killed"), m.OkEmpty)
    assert desk.core.status().members == {}


@pytest.mark.parametrize(("topics", "keyed_only"), [(0, False), (1, True)])
def test_a_queue_says_that_it_has_no_topics_and_then_it_has_none(topics: int, keyed_only: bool) -> None:
    with pytest.raises(ValueError, match="topics"):
        KeyedDesk([plain()] * topics, keyed_only=keyed_only)


# ------------------------------------------------------------ cost


class _Rounds:
    """Rounds of every request, in batches, beside so many stored keys."""

    def __init__(self, stored: int) -> None:
        self._stored, self._turn = stored, 0
        self._desk = KeyedDesk(heartbeat_s=1e9, stall_s=1e9)
        names = dict.fromkeys("abc", SCALAR)
        for begin in range(0, stored, 1000):
            self._desk.put("train", [f"old-{at}" for at in range(begin, min(stored, begin + 1000))], names, [{"n": 1}] * min(1000, stored - begin))
        while self._desk.take("grade", 1000, ["a"]):
            pass

    def seconds(self) -> float:
        desk, names, turn = self._desk, dict.fromkeys("abc", SCALAR), self._turn
        self._turn += 1
        desk.replies.clear()
        begun = time.perf_counter()
        for cycle in range(CYCLES):
            keys = [f"new-{turn}-{cycle}-{at}" for at in range(BATCH)]
            desk.put("train", keys, names, [{"n": 1}] * BATCH)
            desk.put("train", keys, {"a": RUN}, [{"m": 1}] * BATCH)
            desk.look("train", keys, tags=True)
            assert desk.take("grade", BATCH, ["a"]) == keys
            desk.ask(b"x", m.Status(), m.OkStatus)
            assert desk.clear("train", keys) == BATCH
            desk.freed()
        taken = time.perf_counter() - begun
        assert len(desk.listed()["train"]) == self._stored
        return taken


def test_requests_at_20_000_stored_keys_cost_less_than_three_times_those_at_100() -> None:
    sides = _Rounds(100), _Rounds(20_000)
    turns = [[side.seconds() for side in sides] for _ in range(ROUNDS)]  # by turns: whatever else the machine does, it does to both
    few, many = (min(seconds) for seconds in zip(*turns, strict=True))
    print(f"put, overwrite, look, take, clear of {BATCH} keys: {few / CYCLES * 1e3:.2f} ms at 100 keys, {many / CYCLES * 1e3:.2f} ms at 20,000")
    assert many < 3 * few
