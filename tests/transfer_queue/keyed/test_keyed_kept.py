"""Keyed partitions through the death of a controller and of a shard, and through a save and a load."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import queue_run as run
from journal_kept import Kept
from keyed_desk import RUN, SCALAR, KeyedDesk
from queue_processes import Process

from transfer_queue import messages as m
from transfer_queue.columns import Jagged
from transfer_queue.controller.core import CoreConfig
from transfer_queue.errors import QueueError
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.keyed import KeyedClient
from transfer_queue.local import LocalQueue
from transfer_queue.saving.loader import load
from transfer_queue.saving.saver import save

KEYS = [f"key-{at}" for at in range(8)]


class KeptDesk(KeyedDesk):
    """Its controller keeps a journal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        super().__init__([], keyed_only=True)

    def start(self, config: CoreConfig) -> None:
        super().start(config)
        self.kept = Kept(JournalSettings(str(self._folder), snapshot_bytes=4000, replay_s=1e9), config, self.log)
        self.core = self.kept  # type: ignore[assignment]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_controller_that_is_killed_carries_every_request_out_once_and_forgets_nothing(seed: int, tmp_path: Path) -> None:
    rng, desk = random.Random(seed), KeptDesk(tmp_path)
    model: dict[str, dict[str, int]] = {}
    numbers: dict[str, int] = {}
    taken: list[int] = []
    for turn in range(300):
        if rng.random() < 0.1:
            desk.kept.kill_next = rng.choice(["before", "after"])
        keys = rng.sample(KEYS, rng.randint(1, 4))
        what = rng.random()
        if what < 0.5:
            reply, _ = desk.put("train", keys, {"x": rng.choice([SCALAR, RUN])}, [{f"t{turn % 3}": turn}] * len(keys))
            for key, number in zip(keys, m.unpacked(reply.numbers).tolist(), strict=True):
                assert numbers.setdefault(key, number) == number
                assert number not in taken or key in model
                model.setdefault(key, {})[f"t{turn % 3}"] = turn
        elif what < 0.7:
            assert desk.clear("train", keys) == sum(key in model for key in keys)
            for key in keys:
                model.pop(key, None)
                numbers.pop(key, None)
        elif what < 0.85:
            found = desk.look("train", keys)
            assert m.unpacked(found.numbers).tolist() == [numbers[key] for key in keys if key in model]
        else:
            reply = desk.ask(desk.who.connection, desk.take_request("grade", 2, ["x"]), m.OkKeyedTaken)  # type: ignore[assignment]
            got = m.unpacked(reply.numbers).tolist()
            assert not set(got) & set(taken), "a row was given twice"
            taken += got
        desk.kept.rest()
        desk.core.frees.clear()
    assert desk.kept.kills > 10
    assert desk.listed() == ({"train": model} if model else {})
    assert len(desk.live()) == len(model)
    desk.kept.leave()


def test_looks_and_lists_are_no_inputs_and_their_replies_are_not_kept(tmp_path: Path) -> None:
    desk = KeptDesk(tmp_path)
    desk.put("train", KEYS, {"x": SCALAR}, [{"n": "t" * 1000}] * len(KEYS))
    desk.take("grade", 1, ["x"])
    before = desk.kept.opened.journal._log.nbytes
    for _ in range(50):
        desk.look("train", KEYS, tags=True)
        assert list(desk.listed()["train"]) == KEYS
        desk.refuse(desk.who.connection, m.KeyedLook(partition="train", **desk.who.fields))
    assert desk.kept.opened.journal._log.nbytes == before
    kinds = [type(reply) for line in desk.core._runtime.repeats._lines.values() for reply in line.replies.values()]
    assert m.OkLooked not in kinds
    assert m.OkListed not in kinds
    desk.kept.kill()
    assert list(desk.listed()["train"]) == KEYS
    desk.kept.leave()


class KeptBesideTopics(KeptDesk):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        KeyedDesk.__init__(self, heartbeat_s=10.0)

    @property
    def clock(self) -> Any:
        """The controller's present one."""
        return self.kept.opened.clock if hasattr(self, "kept") else self._first

    @clock.setter
    def clock(self, clock: Any) -> None:
        """Of a controller without a journal, which is replaced."""
        self._first = clock


def test_a_member_that_only_looks_is_alive_also_for_a_controller_that_comes_back(tmp_path: Path) -> None:
    desk = KeptBesideTopics(tmp_path)
    desk.put("train", KEYS, {"x": SCALAR})
    for turn in range(200):
        desk.look("train", KEYS)
        desk.wait(0.5)
        if turn % 40 == 20:
            desk.kept.kill()
    assert list(desk.kept.status().members) == ["writer#0"]
    inputs = sum(log.read_bytes().count(b"KeyedLook") for log in tmp_path.glob("log-*"))
    assert 20 <= inputs <= 50, "of 200 looks in 100 seconds"
    desk.wait(11.0)
    assert list(desk.kept.status().members) == []
    desk.kept.leave()


def test_a_fault_of_ours_in_a_look_is_no_event_that_a_journal_would_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = KeptDesk(tmp_path)
    desk.put("train", KEYS, {"x": SCALAR})
    monkeypatch.setattr("transfer_queue.controller.keyed.partition.Partition.common", lambda *_: 1 / 0)
    desk.refuse(desk.who.connection, m.KeyedLook(partition="train", keys=KEYS, **desk.who.fields), "internal")
    monkeypatch.setattr("transfer_queue.controller.run.Run.status", lambda *_: 1 / 0)
    desk.refuse(b"x", m.Status(), "internal")
    monkeypatch.undo()
    desk.put("train", KEYS, {"x": SCALAR})
    desk.kept.kill()
    assert list(desk.listed()["train"]) == KEYS
    desk.kept.leave()


def values(keys: list[str]) -> dict[str, Any]:
    """Columns that follow from the keys."""
    marks = [KEYS.index(key) for key in keys]
    return {
        "ids": Jagged.of([[mark] * (mark + 1) for mark in marks], "int32"),
        "mixed": [np.full(3, mark, dtype="int16") if mark % 2 else f"text of {mark}" for mark in marks],
    }


def same(client: KeyedClient, keys: list[str]) -> None:
    found, expected = client.get("train", keys), values(keys)
    assert found.keys == keys
    for at in range(len(keys)):
        np.testing.assert_array_equal(found["ids"][at], expected["ids"][at])
        np.testing.assert_array_equal(found["mixed"][at], expected["mixed"][at])


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("topics", [0, 1])
def test_what_was_saved_is_there_in_another_queue_with_another_number_of_shards(tmp_path: Path, before: int, after: int, topics: int) -> None:
    specs, folder = [run.spec()] * topics, tmp_path / "saved"
    with LocalQueue(specs, keyed_only=not topics, shards=before) as queue, queue.keyed("me") as me:
        for key in KEYS:
            put = me.put("train", [key], values([key]), tags=[{"key": key}])
        me.put("train", KEYS[2:4], {"more": np.zeros(2)})
        me.clear("train", KEYS[4:5])
        me.put("val", ["tags only"], tags=[{"n": 1}])
        assert me.take("train", "grade", 3).keys == KEYS[:3]
        saved = save(queue.url, folder)
        assert (saved.keys, saved.groups) == (8, 0)
        me.put("train", KEYS, {"ids": np.zeros((8, 2))})  # not saved any more
    there = [key for key in KEYS if key != KEYS[4]]
    with LocalQueue(specs, keyed_only=not topics, shards=after) as queue, queue.keyed("me") as me:
        load(queue.url, folder)
        same(me, there)
        assert me.list_keys() == {"train": {key: {"key": key} for key in there}, "val": {"tags only": {"n": 1}}}
        assert list(me.list_keys()["train"]) == there
        assert me.take("train", "grade", 9).keys == there[3:], "what a task has had is saved too"
        assert sum(status.used_bytes for status in me.shard_status().values()) == saved.nbytes
        me.put("train", numbers=put.numbers, tags=[{"late": 1}])
        new = me.put("train", [KEYS[4]])
        assert new.numbers[0] > put.numbers[0]
        assert me.list_keys()["train"][KEYS[7]] == {"key": KEYS[7], "late": 1}
        with pytest.raises(QueueError, match="have keys"):
            load(queue.url, folder)
        me.clear("train", KEYS)
        assert run.comes_to_use(me, 0)  # type: ignore[arg-type]


def test_a_column_that_begins_where_another_ends_is_saved_with_it(tmp_path: Path) -> None:
    """Columns begin at multiples of 64 bytes, so one of 128 leaves no gap before the next, and both are read as one range."""
    rows = {"a": np.arange(32.0).reshape(2, 16), "b": np.array([True, False])}
    with LocalQueue([], keyed_only=True) as queue, queue.keyed("me") as me:
        for at in range(2):
            me.put("train", [KEYS[at]], {name: column[at : at + 1] for name, column in rows.items()})
        save(queue.url, tmp_path / "saved")
    with LocalQueue([], keyed_only=True) as queue, queue.keyed("me") as me:
        load(queue.url, tmp_path / "saved")
        found = me.get("train", KEYS[:2])
        for name, expected in rows.items():
            for at in range(2):
                np.testing.assert_array_equal(found[name][at], expected[at])


def test_a_shard_that_is_killed_takes_its_cells_and_a_put_of_them_mends_it() -> None:
    with LocalQueue([], keyed_only=True, shards=0) as queue, ExitStack() as stack:
        first, other = (stack.enter_context(Process("shard", queue.url, name)) for name in ("shard-0", "shard-1"))
        assert first.heard() != other.heard()
        with queue.keyed("me") as me:
            for key in KEYS:  # by turns on both
                me.put("train", [key], values([key]), tags=[{"key": key}])
            same(me, KEYS)
            first.kill()
            me.call(dead("shard-0"), 5.0)
            lost = [key for key in KEYS if _is_lost(me, key)]
            assert len(lost) == 4
            assert list(me.list_keys()["train"]) == KEYS
            same(me, [key for key in KEYS if key not in lost])
            me.put("train", lost, values(lost))
            same(me, KEYS)
            other.kill()
            me.call(dead("shard-1"), 5.0)


@pytest.mark.parametrize("cells", [3, 300_000])
def test_bytes_that_a_killed_writer_had_not_published_go_at_once(cells: int) -> None:
    with LocalQueue([], keyed_only=True, shards=0) as queue, ExitStack() as stack:
        shard = stack.enter_context(Process("shard", queue.url))
        shard.heard()
        writer = stack.enter_context(Process("keyed_writer", queue.url, str(cells)))
        with queue.keyed("me") as me:
            assert writer.heard() == "published"
            published = used(me)
            writer.tell("write")
            assert writer.heard() == "written"
            assert used(me) > published
            writer.kill()
            deadline = time.monotonic() + 10.0
            while used(me) > published and time.monotonic() < deadline:
                time.sleep(0.05)
            assert used(me) == published
            assert me.get("train", ["a"])["x"].dense().tolist() == [[1] * cells]
            assert "keyed-writer-0#0" not in me.call(m.Status(), 5.0).status.members


def used(client: KeyedClient) -> int:
    return sum(status.used_bytes for status in client.shard_status().values())


def dead(shard: str) -> m.MemberDead:
    return m.MemberDead(member=shard, incarnation=-1, cause="killed")


def _is_lost(client: KeyedClient, key: str) -> bool:
    try:
        client.get("train", [key])
    except QueueError as error:
        return (error.code, key in str(error)) == ("shard_lost", True)
    return False
