"""What a user does wrong with a client is an error that says so, never other values, a hang, or a crash."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueError
from transfer_queue.local import LocalQueue

SPEC = m.TopicSpec(
    name="t",
    model="policy",
    columns=(m.Column("a", "float32", "scalar", "writer"), m.Column("b", "float32", "scalar", "writer")),
    consumers=(m.Consumer("train", inputs=("a", "b"), unit="group", terminal=True),),
    window=m.Window(batch=3, staleness=0),
)
A, B = np.arange(3, dtype="float32"), np.arange(10, 13, dtype="float32")


def taken(client: QueueClient) -> m.OkTaken:
    client.put("t", {"a": A, "b": B})
    return client.take("t", "train", limit=3, step=0).result(5.0)


def test_columns_are_read_by_their_names_in_any_order_and_number() -> None:
    with LocalQueue([SPEC]) as queue, queue.client("me") as me:
        rows = taken(me).rows
        for names in (["b", "a"], ["a", "b"], ["b"], ["a"], []):
            found = me.read(rows, names, SPEC)
            assert {name: found[name].tolist() for name in names} == {name: {"a": A, "b": B}[name].tolist() for name in names}
        assert me.read(rows[1:], ["b"], SPEC)["b"].tolist() == B[1:].tolist()
        assert me.read(m.Rows().joined([rows[:1], rows[2:]]), ["b"], SPEC)["b"].tolist() == [B[0], B[2]]
        with pytest.raises(ValueError, match=r"columns \['c'\] are not what these rows have, \['a', 'b'\].*Consumer\.inputs"):
            me.read(rows, ["a", "c"], SPEC)
        assert me.read(list(rows), ["a", "b"], SPEC)["b"].tolist() == B.tolist()
        with pytest.raises(ValueError, match="2 columns without names"):
            me.read(list(rows), ["b"], SPEC)


def test_what_has_no_rows_and_gids_that_are_no_numbers_are_refused_by_name() -> None:
    with LocalQueue([SPEC]) as queue, queue.client("me") as me:
        with pytest.raises(TypeError, match=r"column 'a' is .*1\.0.*has no rows"):
            me.put("t", {"a": np.float32(1), "b": B})
        for gid in (1 << 64, -(1 << 64)):
            with pytest.raises(ValueError, match="count from 0"):
                me.put("t", {"a": A, "b": B}, gids=[gid, 1, 2])
        assert queue.status().topics[0].stored_rows == 0


def test_a_client_in_a_forked_child_says_so_at_once_and_its_parent_goes_on() -> None:
    with LocalQueue([SPEC]) as queue, queue.client("me") as me:
        rows = taken(me).rows
        read, write = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(10)
            try:
                me.take("t", "train", limit=1, step=0)
            except RuntimeError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.close(write)
        assert b"is a fork" in os.read(read, 1000)
        os.close(read)
        assert os.waitpid(child, 0)[1] == 0
        assert me.read(rows, ["a"], SPEC)["a"].tolist() == A.tolist()


def test_a_second_thread_is_told_that_a_client_serves_one() -> None:
    with LocalQueue([SPEC]) as queue, queue.client("me") as me:
        waits = threading.Thread(target=lambda: me.poll(2.0))
        waits.start()
        while not me._waits:
            assert waits.is_alive()
        for use in (lambda: me.status(), lambda: me.poll(0.0), lambda: me.put("t", {"a": A, "b": B})):
            with pytest.raises(RuntimeError, match="attach"):
                use()
        with me.attach() as mine:
            assert len(mine.put("t", {"a": A, "b": B}).groups) == 3
        waits.join(5.0)
        assert me.status().result(5.0).status.topics[0].open == 3


def test_a_put_before_the_first_shard_is_there_waits_for_it_and_says_how_long_where_none_comes() -> None:
    with LocalQueue([SPEC], shards=0) as queue, queue.client("me") as me:
        shard = threading.Timer(1.0, lambda: queue._start("shard-0", lambda ready: queue._serve_shard("shard-0", ready)))
        shard.start()
        assert len(me.put("t", {"a": A, "b": B}).groups) == 3
        shard.join()
    refused = pytest.raises(QueueError, match=r"timeout_s=0\.5.*start shards")
    with LocalQueue([SPEC], shards=0) as queue, queue.client("me", timeout_s=0.5) as me, refused:
        me.put("t", {"a": A, "b": B})


def test_a_column_that_was_not_found_is_told_with_what_there_is() -> None:
    with LocalQueue([], keyed_only=True) as queue, queue.keyed("me") as me:
        me.put("p", ["a", "b"], {"x": A[:2]})
        me.put("p", ["a"], {"y": A[:1]})
        with pytest.raises(KeyError, match=r"column 'y'.*not all of the 2 rows.*they have \['x'\]"):
            me.get("p", ["a", "b"])["y"]
