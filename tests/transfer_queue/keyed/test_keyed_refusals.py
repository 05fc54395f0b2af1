"""What cannot travel is refused by name, and leaves no bytes behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from transfer_queue import messages as m
from transfer_queue.errors import QueueError, QueueTimeout
from transfer_queue.keyed import KeyedClient, naming
from transfer_queue.local import LocalQueue


@pytest.fixture(scope="module")
def me() -> Iterator[KeyedClient]:
    with LocalQueue([], keyed_only=True) as queue, queue.keyed("me") as joined:
        yield joined


def used(me: KeyedClient) -> int:
    return sum(status.used_bytes for status in me.shard_status().values())


@pytest.mark.parametrize("wrong", ["", "\ud800", "x" * 1025, b"bytes", 1, type("Name", (str,), {})("own")])
def test_a_name_that_cannot_travel_is_refused_before_anything_is_stored(me: KeyedClient, wrong: Any) -> None:
    asks: list[Callable[[], Any]] = [
        lambda: me.put("train", ["good", wrong], {"x": np.zeros(2)}),
        lambda: me.put(wrong, ["a"], {"x": np.zeros(1)}),
        lambda: me.put("train", ["a"], {wrong: np.zeros(1)}),
        lambda: me.get("train", [wrong]),
        lambda: me.get("train", ["a"], [wrong]),
        lambda: me.clear("train", [wrong]),
        lambda: me.list_keys([wrong]),
        lambda: me.take("train", wrong, 1),
        lambda: me.take("train", "grade", 1, [wrong]),
    ]
    before = used(me)
    for ask in asks:
        with pytest.raises((ValueError, TypeError), match=r"(key|partition|column|task)=.*1 to 1024 characters.*nothing was asked"):
            ask()
    assert used(me) == before
    assert me.list_keys() == {}


def test_names_of_numpy_are_names_and_one_str_is_no_list_of_them(me: KeyedClient) -> None:
    keys = np.array(["a", "b"])
    me.put("train", keys, {np.str_("x"): np.zeros(2)})  # type: ignore[arg-type, dict-item]
    found = me.get("train", keys, ["x"])  # type: ignore[arg-type]
    assert [(type(key), key) for key in found.keys] == [(str, "a"), (str, "b")]
    for ask in (lambda: me.list_keys("train"), lambda: me.get("train", ["a"], "x"), lambda: me.take("train", "grade", 1, "x")):
        with pytest.raises(TypeError, match="a name a character"):
            ask()
    assert me.clear("train", ["a", "b"]) == 2


@pytest.mark.parametrize("wrong", [[0.0], [1.7], [float("nan")], [True], np.array([True]), np.array([1.0]), [2**63], [[0]], np.ma.array([0, 1])])
def test_numbers_that_are_no_integers_name_no_row(me: KeyedClient, wrong: Any) -> None:
    for ask in (lambda: me.put("train", numbers=wrong, columns={"x": np.zeros(len(wrong))}), lambda: me.clear("train", numbers=wrong)):
        with pytest.raises(TypeError, match=r"numbers=.*int64.*`put` returned"):
            ask()
    assert used(me) == 0


def test_a_put_that_the_wire_would_refuse_is_refused_before_anything_is_stored(me: KeyedClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(naming, "MOST_MESSAGE_BYTES", 1 << 16)
        patch.setattr(naming, "MOST_ROWS", 3000)
        keys = [f"k{at}" for at in range(3000)]
        for columns, tags in (({"x": np.zeros(3000)}, None), ({}, [{"n": "x" * 20}] * 3000)):
            with pytest.raises(ValueError, match=r"3000 rows of \d columns make a request of \d+ bytes, 65536 are the most.*fewer rows"):
                me.put("train", keys, columns, tags)
        with pytest.raises(ValueError, match="3001 rows in one request, 3000 are the most"):
            me.put("train", [*keys, "more"], {"x": np.zeros(3001)})
    assert used(me) == 0


def test_the_size_that_is_reckoned_is_never_less_than_what_is_sent(me: KeyedClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    call = KeyedClient.call

    def measured(self: KeyedClient, request: m.Request, timeout_s: float) -> Any:
        sent.append(len(msgspec.msgpack.encode(request)) if isinstance(request, m.KeyedPut) else 0)
        return call(self, request, timeout_s)

    monkeypatch.setattr(KeyedClient, "call", measured)
    keys, tags = [f"é{at}" * 9 for at in range(2000)], [{"n": at, "s": "x" * 30} for at in range(2000)]
    me.put("train", keys, {"x": [np.zeros(at % 3 + 1, dtype=("f4", "i8")[at % 2]) for at in range(2000)], "y" * 99: np.zeros(2000)}, tags)
    monkeypatch.setattr(naming, "MOST_MESSAGE_BYTES", max(sent) - 1)
    with pytest.raises(ValueError, match="fewer rows at once"):
        me.put("train", keys, {"x": [np.zeros(at % 3 + 1, dtype=("f4", "i8")[at % 2]) for at in range(2000)], "y" * 99: np.zeros(2000)}, tags)
    assert me.clear("train", keys) == 2000


def test_a_masked_value_in_a_list_is_refused_not_written_as_the_number_behind_the_mask(me: KeyedClient) -> None:
    for masked in (np.ma.array([1.0, 2.0], mask=[False, True]), np.ma.masked, np.ma.array(1.0, mask=True)):
        with pytest.raises(ValueError, match="'x, row 1' is masked"):
            me.put("train", ["a", "b"], {"x": [np.zeros(2), masked]})
    me.put("train", ["a"], {"x": [np.ma.array([1.0, 2.0])]})
    assert me.get("train", ["a"])["x"][0].tolist() == [1.0, 2.0]
    assert me.clear("train", ["a"]) == 1


def test_a_full_shard_is_told_also_where_nobody_says_who_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    call = KeyedClient.call

    def silent(self: KeyedClient, request: m.Request, timeout_s: float) -> Any:
        if isinstance(request, m.Status):
            raise QueueTimeout("the controller is busy")
        return call(self, request, timeout_s)

    with LocalQueue([], keyed_only=True, capacity_bytes=1 << 20) as queue, queue.keyed("me") as joined:
        monkeypatch.setattr(KeyedClient, "call", silent)
        with pytest.raises(QueueError, match="clear keys that are not read any more") as full:
            joined.put("train", ["a"], {"x": np.zeros((1, 1 << 20))})
        assert full.value.code == "capacity"
