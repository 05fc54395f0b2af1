"""Keyed partitions through sockets and shards: what is read is what was put, whatever the rows of a column are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from transfer_queue import messages as m
from transfer_queue.codec import from_torch, to_torch
from transfer_queue.columns import Jagged
from transfer_queue.errors import KeysChanged, QueueError, QueueTimeout
from transfer_queue.keyed import Found, KeyedClient
from transfer_queue.link import Link
from transfer_queue.local import LocalQueue


@pytest.fixture(scope="module")
def running() -> Iterator[LocalQueue]:
    with LocalQueue([], keyed_only=True, shards=2) as queue:
        yield queue


@pytest.fixture
def client(running: LocalQueue, request: pytest.FixtureRequest) -> Iterator[KeyedClient]:
    with running.keyed(f"me-{abs(hash(request.node.name))}") as joined:
        yield joined
        for partition, keys in joined.list_keys().items():
            joined.clear(partition, list(keys))


def test_every_kind_comes_back_as_it_was_put(client: KeyedClient) -> None:
    hidden = torch.arange(24, dtype=torch.bfloat16).reshape(6, 4)
    columns: dict[str, Any] = {
        "reward": np.array([0.5, -1.0, 3.0], dtype="float32"),
        "ids": Jagged.of([[1, 2, 3], [], [4]], "int64"),
        "dense": np.arange(12, dtype="int32").reshape(3, 4),
        "hidden": from_torch(hidden, torch.tensor([0, 3, 3, 6])),
        "raw": [b"a", b"", b"ccc"],
        "said": ["yes", "", "né"],
        "more": [{"a": (1, None)}, [np.arange(3)], None],
    }
    put = client.put("train", ["x", "y", "z"], columns, tags=[{"n": 1}, None, {"deep": (1, 2)}])
    assert put.names == sorted(columns)
    assert put.tags == [{"n": 1}, {}, {"deep": (1, 2)}]
    found = client.get("train", ["z", "x", "nobody", "y"], tags=True)
    assert (found.keys, found.rows.tolist(), found.tags) == (["z", "x", "y"], [0, 1, 3], [{"deep": (1, 2)}, {"n": 1}, {}])
    assert found.numbers.tolist() == [put.numbers[2], put.numbers[0], put.numbers[1]]
    assert {name: parts[0].type for name, parts in found.parts.items()} == {
        "reward": m.CellType("scalar", "float32"),
        "ids": m.CellType("per_token", "int64"),
        "dense": m.CellType("per_token", "int32"),
        "hidden": m.CellType("per_token", "bfloat16", (4,)),
        "raw": m.CellType("blob", "uint8"),
        "said": m.CellType("text", "uint8"),
        "more": m.CellType("object", "uint8"),
    }
    assert found["reward"].tolist() == [3.0, 0.5, -1.0]
    assert [run.tolist() for run in runs(found, "ids")] == [[4], [1, 2, 3], []]
    assert [run.tolist() for run in runs(found, "dense")] == [[8, 9, 10, 11], [0, 1, 2, 3], [4, 5, 6, 7]]
    values, offsets = to_torch(found["hidden"])
    assert torch.equal(values, hidden[[3, 4, 5, 0, 1, 2]])
    assert offsets.tolist() == [0, 3, 6, 6]
    assert (found["raw"], found["said"]) == ([b"ccc", b"a", b""], ["né", "yes", ""])
    assert found["more"][:2] == [None, {"a": (1, None)}]
    assert found["more"][2][0].tolist() == [0, 1, 2]


def test_rows_of_one_column_may_differ_in_kind_dtype_and_shape(client: KeyedClient) -> None:
    pairs, bytes_ = np.arange(6, dtype="int64").reshape(3, 2), np.arange(3, dtype="int8")
    rows = [np.float32(1.5), pairs, "text", b"bytes", {"an": "object"}, bytes_, np.float32(2.5)]
    keys = [f"k{at}" for at in range(len(rows))]
    client.put("train", keys, {"x": rows, "alike": [np.arange(at) for at in range(len(rows))]})
    found = client.get("train", keys[::-1])
    assert len(found.parts["x"]) == 6
    assert len(found.parts["alike"]) == 1, "runs of one dtype and shape are one type, however long"
    for got, put in zip(found["x"], rows[::-1], strict=True):
        assert type(got) is type(put)
        np.testing.assert_array_equal(got, put)  # type: ignore[arg-type]
        assert getattr(got, "dtype", None) == getattr(put, "dtype", None)
    assert [run.tolist() for run in runs(found, "alike")] == [list(range(at)) for at in range(len(rows))][::-1]
    assert client.get("train", keys[2:3])["x"] == ["text"]


def test_a_cell_is_overwritten_with_another_length_and_type_and_its_neighbours_stay(client: KeyedClient) -> None:
    client.put("train", ["a", "b"], {"x": Jagged.of([[1], [2, 3]], "int32"), "y": np.array([1.0, 2.0])})
    before = client.get("train", ["a", "b"])
    client.put("train", ["b"], {"x": np.arange(5.0)[None]})
    after = client.get("train", ["a", "b"])
    assert [each.tolist() for each in after["x"]] == [[1], [0, 1, 2, 3, 4]]
    assert after["y"].tolist() == [1.0, 2.0]
    assert [run.tolist() for run in runs(before, "x")] == [[1], [2, 3]], "what was read stays as it was"


def test_puts_by_number_reach_what_is_there_and_leave_out_what_is_gone(client: KeyedClient) -> None:
    numbers = client.put("train", ["a", "b", "c"]).numbers
    assert client.clear("train", numbers=numbers[1:2]) == 1
    client.put("train", ["b"], {"x": np.array([7.0])})
    late = client.put("train", numbers=numbers, columns={"x": np.array([1.0, 2.0, 3.0])}, tags=[{"n": at} for at in range(3)])
    assert late.numbers.tolist() == [numbers[0], -1, numbers[2]]
    found = client.get("train", ["a", "b", "c"], tags=True)
    assert found["x"].tolist() == [1.0, 7.0, 3.0]
    assert found.tags == [{"n": 0}, {}, {"n": 2}]
    by_number = client.get("train", numbers=numbers[::-1], names=())
    assert (by_number.keys, by_number.parts) == (["c", "a"], {})


def test_a_row_of_25_columns_takes_two_requests_each_way(client: KeyedClient, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {f"column-{at}": np.arange(at + 1, dtype="int32")[None] for at in range(25)}
    for _ in range(4):  # by turns to both shards: they are known, and have room reserved, from here on
        client.put("train", ["a"], columns)
        client.get("train", ["a"])
    sent: list[str] = []
    send = Link.send
    monkeypatch.setattr(Link, "send", lambda link, *request, **more: (sent.append(type(request[1]).__name__), send(link, *request, **more))[1])
    client.put("train", ["a"], columns, tags=[{"n": 1}])
    assert len(sent) <= 2, sent
    assert sent.count("KeyedPut") == 1
    sent.clear()
    found = client.get("train", ["a"])
    assert len(sent) <= 2, sent
    assert sent.count("KeyedLook") == 1
    assert [found[f"column-{at}"][0].tolist() for at in range(25)] == [list(range(at + 1)) for at in range(25)]


def test_a_read_whose_rows_are_overwritten_meanwhile_looks_again_and_gives_up_by_name(
    running: LocalQueue, client: KeyedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = np.zeros((1, 200_000))
    client.put("train", ["a"], {"x": large})
    looked: list[int] = []
    times = 0
    call = KeyedClient.call
    with running.keyed("other") as other:

        def overwritten(self: KeyedClient, request: m.Request, timeout_s: float) -> Any:
            reply = call(self, request, timeout_s)
            if isinstance(request, m.KeyedLook):
                looked.append(1)
                if len(looked) <= times:
                    other.put("train", ["a"], {"x": large + len(looked)})
                    assert freed(other)
            return reply

        def freed(other: KeyedClient) -> bool:
            """The overwritten cell has left its shard: the controller tells it by a message of its own."""
            return any(sum(each.used_bytes for each in other.shard_status().values()) == large.nbytes for _ in range(1000))

        monkeypatch.setattr(client, "call", overwritten.__get__(client))
        for times in (1, 2):
            looked.clear()
            assert client.get("train", ["a"])["x"][0][0] == times
            assert len(looked) == times + 1
        times = 3
        looked.clear()
        with pytest.raises(KeysChanged, match=r"keys \['a'\] of partition 'train' .* 3 times"):
            client.get("train", ["a"])
        assert len(looked) == 3


def test_a_reader_beside_a_writer_sees_one_put_or_another_and_never_a_part_of_each(running: LocalQueue, client: KeyedClient) -> None:
    keys, over = [f"k{at}" for at in range(8)], threading.Event()

    def overwrite() -> None:
        with running.keyed("writer-of-all") as writer:
            turn = 0
            while not over.is_set():
                turn += 1
                writer.put("train", keys, {"x": np.full((8, 5000), turn), "y": np.full(8, turn)})

    client.put("train", keys, {"x": np.full((8, 5000), 0), "y": np.full(8, 0)})
    thread = threading.Thread(target=overwrite)
    thread.start()
    try:
        seen: set[int] = set()
        for _ in range(100):
            try:
                found = client.get("train", keys)
            except KeysChanged:
                continue
            (turn,) = set(found["y"].tolist())
            assert set(found["x"].values.tolist()) == {turn}
            seen.add(turn)
    finally:
        over.set()
        thread.join(10.0)
    assert len(seen) > 3


def test_wrong_arguments_are_refused_by_name_before_a_byte_moves(client: KeyedClient) -> None:
    for keys, numbers in (([], None), ("key", None), (["a"], [1]), ([], [])):
        for ask in (client.put, client.get, client.clear):
            with pytest.raises(ValueError, match="at least one"):
                ask("train", keys, numbers=numbers)  # type: ignore[operator]
    with pytest.raises(ValueError, match="'x' has 2 rows for 1 keys"):
        client.put("train", ["a"], {"x": np.zeros(2)})
    with pytest.raises(TypeError, match=r"'x'.*row 0.*set"):
        client.put("train", ["a"], {"x": [{1, 2}]})
    with pytest.raises(ValueError, match="tags"):
        client.put("train", ["a"], tags=[{}, {}])
    with pytest.raises(TypeError, match="'tags', row 0"):
        client.put("train", ["a"], tags=[{"x": object()}])
    with pytest.raises(QueueError, match="twice"):
        client.put("train", ["a", "a"], {"x": np.zeros(2)})
    assert client.list_keys() == {}
    assert all(not status.used_bytes for status in client.shard_status().values())


def test_a_full_shard_says_which_partition_holds_what() -> None:
    with LocalQueue([], keyed_only=True, capacity_bytes=1 << 20) as queue, queue.keyed("me") as me:
        me.put("train", ["a", "b"], {"x": np.zeros((2, 50_000))})
        me.put("val", ["c"], {"x": np.zeros((1, 10_000))})
        held = "partition 'train' holds 800000 bytes of 2 keys, partition 'val' holds 80000 bytes of 1 keys: clear"
        with pytest.raises(QueueError, match=held) as full:
            me.put("train", ["d"], {"x": np.zeros((1, 50_000))})
        assert full.value.code == "capacity"
        assert list(me.list_keys()["train"]) == ["a", "b"], "nothing of the key that found no room is left"
        me.clear("train", ["a"])
        deadline = 1000
        while deadline:
            try:
                me.put("train", ["d"], {"x": np.zeros((1, 50_000))})
                break
            except QueueError:  # the shard has not heard of the clear yet
                deadline -= 1
        assert list(me.list_keys()["train"]) == ["b", "d"]


def test_a_take_waits_for_a_put_and_its_keys_can_be_read(running: LocalQueue, client: KeyedClient) -> None:
    with running.keyed("taker") as taker:
        asked = taker.submit(
            m.KeyedTake(partition="train", member="", incarnation=0, task="grade", limit=2, names=("x",), at_least=2, wait_s=20.0)
        )
        client.put("train", ["a", "b", "c"], {"x": np.arange(3.0)})
        assert asked.result(10.0).keys == ["a", "b"]
        rest = taker.take("train", "grade", 5, ["x"])
        assert taker.get("train", numbers=m.unpacked(rest.numbers))["x"].tolist() == [2.0]
        assert taker.take("train", "grade", 5, ["x"], wait_s=0.0).keys == []


def test_rows_of_a_take_that_was_given_up_are_given_by_the_next_one_that_asks_for_the_same(
    client: KeyedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put("train", [*"abcde"], {"x": np.arange(5.0), "y": np.arange(5.0)})
    with monkeypatch.context() as patch:
        patch.setattr(client, "timeout_s", 0.0)
        with pytest.raises(QueueTimeout):
            client.take("train", "grade", 3, ["x", "y"], wait_s=0.0)
    client.list_keys()  # the late reply has come, too: replies keep their order
    numbers = client.get("train", [*"abcde"], ()).numbers
    first = client.take("train", "grade", 2, ["y", "x"], wait_s=0.0)
    assert (first.keys, m.unpacked(first.numbers).tolist()) == (["a", "b"], numbers[:2].tolist())
    assert client.take("train", "grade", 9, ["x", "y"], at_least=4, wait_s=0.0).keys == [], "there are three"
    rest = client.take("train", "grade", 9, ["x", "y"], at_least=3, wait_s=0.0)
    assert (rest.keys, m.unpacked(rest.numbers).tolist()) == (["c", "d", "e"], numbers[2:].tolist())
    assert client.take("train", "grade", 9, ["x", "y"], wait_s=0.0).keys == []


def test_a_take_that_was_given_up_while_it_waits_takes_nothing_from_others(running: LocalQueue, client: KeyedClient) -> None:
    with running.keyed("impatient") as impatient:
        impatient.timeout_s = 0.1
        with pytest.raises(QueueTimeout):
            call_that_waits(impatient)
        impatient.timeout_s = 30.0
        impatient.list_keys()  # the controller has heard that nobody waits
        client.put("train", ["a"], {"x": np.zeros(1)})
        assert client.take("train", "grade", 1, ["x"], wait_s=0.0).keys == ["a"]


def test_a_take_that_looks_for_late_rows_hides_no_reply_from_a_poll(client: KeyedClient) -> None:
    asked = client.submit(m.KeyedList(member="", incarnation=0))
    assert client.controller.socket.poll(10_000)
    assert client.take("train", "grade", 1, wait_s=0.0).keys == []
    assert client.poll(0.0) == {asked}


def call_that_waits(client: KeyedClient) -> None:
    """Longer than its client."""
    client.call(m.KeyedTake(partition="train", member="", incarnation=0, task="grade", limit=1, names=("x",), wait_s=60.0), 0.1)


def runs(found: Found, name: str) -> list[np.ndarray]:
    column = found[name]
    assert isinstance(column, Jagged)
    return [column[at] for at in range(len(column))]
