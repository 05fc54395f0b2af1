"""A request is measured before anything of its size is made, and what a partition holds is bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from keyed_desk import RUN, SCALAR, TEXT, KeyedDesk

from transfer_queue import messages as m
from transfer_queue.controller.keyed import handling, taking


def test_rows_that_are_named_again_and_again_make_no_reply_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    reply, _ = desk.put("train", ["a", "b"], {"x": SCALAR, "y": RUN}, [{"n": "t" * 100}] * 2)
    monkeypatch.setattr(handling, "MOST_CELLS", 16)
    monkeypatch.setattr(handling, "MOST_REPLY_BYTES", 1000)
    assert len(m.unpacked(desk.look("train", ["a"] * 8).found)) == 8
    look = m.KeyedLook(partition="train", keys=["a"] * 9, **desk.who.fields)
    assert "9 rows of 2 columns, 16 cells are the most" in desk.refuse(desk.who.connection, look)
    assert len(m.unpacked(desk.look("train", ["a"] * 9, names=("x",)).found)) == 9
    look = m.KeyedLook(partition="train", keys=["a"] * 10, names=(), tags=True, **desk.who.fields)
    assert "name fewer rows at once" in desk.refuse(desk.who.connection, look)
    look = m.KeyedLook(partition="train", numbers=reply.numbers[:8] * 1001, names=(), **desk.who.fields)
    assert "keys and tags of 1001 rows of partition 'train' have 1001 bytes, 1000 are the most" in desk.refuse(desk.who.connection, look)
    assert list(desk.listed(*["train"] * 1000)) == ["train"]


def test_the_counts_of_a_put_are_looked_at_before_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    for name, most in (("MOST_COLUMNS", 3), ("MOST_TYPES", 2), ("MOST_CELLS", 4)):
        monkeypatch.setattr(handling, name, most)
    checked: list[str] = []
    check = handling.check_cells
    monkeypatch.setattr(handling, "check_cells", lambda name, *rest: (checked.append(name), check(name, *rest))[1])
    wide: dict[str, Any] = {"keys": ["a"], "columns": {f"x{at}": desk.cells([SCALAR], [desk.block()]) for at in range(4)}}
    many: dict[str, Any] = {"keys": [*"abc"], "columns": {f"x{at}": desk.cells([SCALAR] * 3, [desk.block()] * 3) for at in range(2)}}
    mixed: dict[str, Any] = {"keys": [*"abc"], "columns": {"x": desk.cells([SCALAR, RUN, TEXT], [desk.block()] * 3)}}
    for fields, part in ((wide, "a put of 4 columns, 3 are"), (many, "3 rows of 2 columns, 4 cells are"), (mixed, "'x' has 3 types of cells, 2 are")):
        assert part in desk.refuse(desk.who.connection, desk.put_request("train", **fields))
    assert checked == []
    assert desk.live() == []
    desk.put("train", [*"ab"], {"x": SCALAR, "y": SCALAR})


def test_a_column_more_is_refused_where_a_partition_has_too_many_keys_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    monkeypatch.setattr(handling, "MOST_PLACES", 8)
    desk.put("train", [*"abcd"], {"x": SCALAR, "y": SCALAR})
    put = desk.put_request("train", keys=["a"], columns={"z": desk.cells([SCALAR], [desk.block()])})
    assert "4 keys and 3 columns, 8 of keys x columns are the most" in desk.refuse(desk.who.connection, put)
    assert "5 keys and 2 columns" in desk.refuse(desk.who.connection, desk.put_request("train", keys=["e"]))
    desk.clear("train", ["a", "b"])
    desk.put("train", ["c"], dict.fromkeys("xyz", SCALAR))


def test_slots_of_keys_that_went_are_given_back_and_the_rest_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    monkeypatch.setattr("transfer_queue.controller.keyed.partition.FEW_SLOTS", 8)
    keys = [f"k{at}" for at in range(40)]
    reply, blocks = desk.put("train", keys, {"x": SCALAR}, [{"n": at} for at in range(40)])
    desk.put("train", keys[20:], {"y": RUN})
    assert desk.take("grade", 36, ["x"]) == keys[:36]
    assert desk.take("late", 1, ["x", "y"]) == keys[20:21]
    desk.clear("train", keys[:34])
    partition = desk.core._run.keyed.partitions["train"]
    assert partition.table.used == 6 == len(partition)
    assert desk.take("grade", 9, ["x"]) == keys[36:]
    assert desk.take("late", 9, ["x", "y"]) == keys[34:]
    found = desk.look("train", keys[30:], tags=True)
    assert m.unpacked(found.numbers).tolist() == m.unpacked(reply.numbers)[34:].tolist()
    assert m.places(found.columns["x"].places)[:, 1].tolist() == blocks[34:]
    assert desk.listed() == {"train": {f"k{at}": {"n": at} for at in range(34, 40)}}
    assert partition.tag_bytes == sum(map(len, found.tags))
    late = desk.ask(desk.who.connection, desk.put_request("train", numbers=reply.numbers), m.OkKeyed)
    assert m.unpacked(late.numbers).tolist() == [-1] * 34 + m.unpacked(reply.numbers)[34:].tolist()
    desk.clear("train", keys[34:])
    assert desk.live() == []


def test_types_that_no_cell_has_any_more_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    monkeypatch.setattr("transfer_queue.controller.keyed.cells.MOST_TYPES", 2)
    desk.put("train", ["a", "b"], {"x": SCALAR})
    desk.put("train", ["b"], {"x": RUN})
    full = desk.put_request("train", keys=["b"], columns={"x": desk.cells([TEXT], [desk.block()])})
    assert "types of cells, the most" in desk.refuse(desk.who.connection, full)
    desk.put("train", ["a"], {"x": RUN})
    desk.put("train", ["a"], {"x": TEXT})
    cells = desk.look("train", ["a", "b"]).columns["x"]
    assert [cells.types[at] for at in m.unpacked(cells.which).tolist()] == [TEXT, RUN]
    desk.put("train", ["b"], {"x": TEXT})
    desk.put("train", ["b"], {"x": SCALAR})
    cells = desk.look("train", ["a", "b"]).columns["x"]
    assert [cells.types[at] for at in m.unpacked(cells.which).tolist()] == [TEXT, SCALAR]


def test_the_tags_of_a_partition_have_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    tag = {"n": "t" * 40}
    size = len(msgspec.msgpack.encode(tag))
    monkeypatch.setattr(handling, "MOST_TAG_BYTES", 2 * size)
    desk.put("train", ["a", "b"], tags=[tag, tag])
    desk.put("train", ["a", "b"], tags=[tag, tag])
    full = desk.put_request("train", keys=["c"], tags=[msgspec.msgpack.encode(tag)])
    assert f"'train' would have {3 * size} bytes, {2 * size} are the most" in desk.refuse(desk.who.connection, full)
    desk.put("val", ["c"], tags=[tag])
    desk.clear("train", ["a"])
    desk.put("train", ["c"], tags=[tag])
    assert desk.listed("train") == {"train": {"b": tag, "c": tag}}


def test_the_columns_that_a_task_asks_for_are_few_and_their_order_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    monkeypatch.setattr(handling, "MOST_COLUMNS", 3)
    desk.put("train", ["a", "b"], {"x": SCALAR, "y": SCALAR})
    assert desk.take("grade", 1, ["y", "x", "y"]) == ["a"]
    looked = begun(monkeypatch)
    assert desk.take("grade", 1, ["x", "y"]) == ["b"]
    assert looked == []
    assert "names has 4 columns, 3 are the most" in desk.refuse(desk.who.connection, desk.take_request("grade", 1, ["x"] * 4))


def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """For which columns every row is looked at, from now on."""
    looked: list[Any] = []
    begin = taking.Task.begin
    monkeypatch.setattr(taking.Task, "begin", lambda task, names: (looked.append(names), begin(task, names))[1])
    return looked


def test_takers_of_one_task_that_ask_for_different_columns_by_turns_look_at_every_row_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk(heartbeat_s=1e9)
    looked = begun(monkeypatch)
    desk.put("train", [f"k{at}" for at in range(20)], {"x": SCALAR, "y": SCALAR})
    had = [key for at in range(10) for key in desk.take("grade", 1, ["xy"[at % 2]])]
    assert had == [f"k{at}" for at in range(10)], "one task, whatever its takers ask for"
    assert looked == [("x",), ("y",)]
    waits = [desk.send(desk.who.connection, desk.take_request("grade", 9, names, at_least=9, wait_s=60.0)) for names in ("z", "w", "z", "w")]
    looked.clear()
    for at in range(5):
        desk.put("train", [f"k{at}"], {"v": SCALAR})
    assert looked == [], "what waits for other columns is tried again at each put"
    desk.put("train", [f"k{at}" for at in range(20)], {"z": SCALAR})
    assert desk.replies[waits[0]].keys == [f"k{at}" for at in range(10, 19)]
    desk.put("train", [f"k{at}" for at in range(20)], {"w": SCALAR})
    assert desk.take("grade", 9, ["w", "x"]) == ["k19"]


def test_of_many_sets_of_columns_the_last_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk()
    monkeypatch.setattr(taking, "MOST_SETS", 2)
    looked = begun(monkeypatch)
    desk.put("train", [*"abcdef"], {"x": SCALAR, "y": SCALAR, "z": SCALAR})
    assert [desk.take("grade", 1, [name]) for name in "xyxzxy"] == [[key] for key in "abcdef"]
    assert looked == [("x",), ("y",), ("z",), ("y",)]


def test_a_task_that_is_over_makes_room_for_another_and_begins_anew_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeyedDesk(heartbeat_s=1e9)
    monkeypatch.setattr(handling, "MOST_TASKS", 2)
    desk.put("train", ["a", "b"], {"x": SCALAR})
    assert desk.take("one", 2, ["x"]) == desk.take("two", 2, ["x"]) == ["a", "b"]
    assert "end one that is over" in desk.refuse(desk.who.connection, desk.take_request("three", 1))
    waits = desk.send(desk.who.connection, desk.take_request("two", 1, ["x"], wait_s=60.0))
    assert waits not in desk.replies
    for task in ("one", "two", "nobody"):
        desk.ask(desk.who.connection, m.KeyedEndTask(partition="train", task=task, **desk.who.fields), m.OkEmpty)
    assert desk.replies[waits].keys == ["a"], "it waited under a name that begins anew"
    assert desk.take("three", 2, ["x"]) == ["a", "b"]
    assert desk.core.status().partitions[0].tasks == {"two": 1, "three": 0}
