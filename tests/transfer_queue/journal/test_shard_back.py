"""Clients of a shard that is killed, and of one that is started again in its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import queue_run as run
from journal_members import INPUTS, read_all
from queue_processes import Process

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.errors import Gone
from transfer_queue.local import LocalQueue
from transfer_queue.shard.messages import LIFE_BITS

WAIT_S = 10.0


def lose(queue: LocalQueue, shard: Process, name: str) -> None:
    """As a launcher does that sees its process end."""
    shard.kill()
    with QueueClient.outsider(queue.url) as launcher:
        launcher.member_dead(name, "killed by the test").result(WAIT_S)


@contextmanager
def running(queue: LocalQueue, name: str) -> Iterator[Process]:
    """A shard, which is lost at the end at the latest."""
    with Process("shard", queue.url, name) as process:
        process.heard()
        yield process
        lose(queue, process, name)


def test_a_reader_is_told_that_rows_are_gone_and_they_are_generated_again() -> None:
    with LocalQueue([run.spec()], shards=0) as queue, ExitStack() as stack:
        stack.enter_context(running(queue, "shard-1"))
        source = stack.enter_context(queue.client("source"))
        assert run.put_prompts(source, range(4)) == 4, "all on the only shard"
        other = stack.enter_context(running(queue, "shard-0"))
        rollout, stage = (stack.enter_context(queue.client(name)) for name in ("rollout-0", "stage"))
        for lease in rollout.pull(run.TOPIC, 0, 4).result(WAIT_S).groups:
            assert run.put_groups(rollout, [lease], 0) == []  # one after the other, on either
        taken = stage.take(run.TOPIC, "reward", limit=8).result(WAIT_S)
        responses = m.places(taken.rows.columns[2])
        lost = sorted(set(m.unpacked(taken.rows.gids)[responses[:, 0] == 0].tolist()))
        assert len(lost) == 2
        lose(queue, other, "shard-0")
        with pytest.raises(Gone) as gone:
            stage.read(taken.rows, INPUTS, run.spec())
        assert gone.value.gids == lost
        stage.release(run.TOPIC, "reward", taken.lease).result(WAIT_S)
        again = rollout.pull(run.TOPIC, 0, 4).result(WAIT_S).groups
        assert sorted(lease.gid for lease in again) == lost
        assert run.put_groups(rollout, again, 0) == []
        read_all(stage, stage.take(run.TOPIC, "reward", limit=8, at_least=8).result(WAIT_S))


def test_writers_go_to_another_shard_and_to_one_that_comes_back():
    with LocalQueue([run.spec()], shards=1) as queue, ExitStack() as stack:
        other = stack.enter_context(running(queue, "shard-1"))
        client = stack.enter_context(queue.client("writer"))
        values = np.ones((4, 3), dtype="int32")
        assert {client.write(range(4), {"response_ids": values})["response_ids"][0].shard for _ in range(4)} == {0, 1}
        lose(queue, other, "shard-1")
        assert {client.write(range(4), {"response_ids": values})["response_ids"][0].shard for _ in range(4)} == {0}
        stack.enter_context(running(queue, "shard-1"))
        client._renew(0.0)
        written = [client.write(range(4), {"response_ids": values})["response_ids"] for _ in range(4)]
        assert {slices[0].shard for slices in written} == {0, 1}
        rows = [m.RowRef(gid, 0, 0, 0, [piece]) for slices in written for gid, piece in enumerate(slices)]
        assert client.read(rows, ["response_ids"], run.spec())["response_ids"].dense().tolist() == [[1, 1, 1]] * 16


def test_a_writer_that_others_can_serve_finds_a_shard_that_came_back_by_itself():
    """Else what it wanted to write to the dead one would wait in its memory, and the one in its place would get nothing."""
    with LocalQueue([run.spec()], shards=1) as queue, ExitStack() as stack:
        other = stack.enter_context(running(queue, "shard-1"))
        client = stack.enter_context(queue.client("writer"))
        values = np.ones((4, 3), dtype="int32")
        before = {client.write(range(4), {"response_ids": values})["response_ids"][0] for _ in range(4)}
        lose(queue, other, "shard-1")
        stack.enter_context(running(queue, "shard-1"))
        written = [client.write(range(4), {"response_ids": values})["response_ids"][0] for _ in range(6)]
        assert {piece.shard for piece in written} == {0, 1}
        lives = {piece.block >> LIFE_BITS for piece in written if piece.shard == 1}
        assert lives.isdisjoint(piece.block >> LIFE_BITS for piece in before if piece.shard == 1), "in the life that there is"


def test_bytes_whose_shard_ended_before_the_controller_heard_of_them_are_written_again():
    with LocalQueue([run.spec()], shards=1) as queue, ExitStack() as stack:
        source = stack.enter_context(queue.client("source"))
        run.put_prompts(source, range(4))
        other = stack.enter_context(running(queue, "shard-1"))
        rollout = stack.enter_context(queue.client("rollout-0"))
        lost = threading.Event()
        write = rollout.write_places

        def write_then_lose(*arguments: Any, **more: Any) -> dict[str, np.ndarray]:
            found = write(*arguments, **more)
            if not lost.is_set() and any((table[:, 0] == 1).any() for table in found.values()):
                lost.set()
                lose(queue, other, "shard-1")
            return found

        rollout.write_places = write_then_lose  # type: ignore[method-assign]
        for lease in rollout.pull(run.TOPIC, 0, 4).result(WAIT_S).groups:
            run.put_groups(rollout, [lease], 0)
        assert lost.is_set()
        with queue.client("stage") as stage:
            taken = stage.take(run.TOPIC, "reward", limit=8).result(WAIT_S)
            for column in taken.rows.columns[2:]:
                assert set(m.places(column)[:, 0].tolist()) == {0}
            read_all(stage, taken)


def test_a_shard_that_is_asked_to_end_takes_nothing_new_and_leaves_when_it_is_empty() -> None:
    with LocalQueue([run.spec()], shards=1) as queue, ExitStack() as stack:
        other = stack.enter_context(running(queue, "shard-1"))
        client = stack.enter_context(queue.client("writer"))
        values = np.ones((4, 3), dtype="int32")

        def write() -> list[m.Slice]:
            return client.write(range(4), {"response_ids": values})["response_ids"]

        written = [piece for _ in range(2) for piece in write()]
        assert {piece.shard for piece in written} == {0, 1}
        other.popen.terminate()
        deadline = run.Deadline(WAIT_S)
        while 1 in {piece.shard for piece in written[-8:]}:
            deadline.check("the shard takes in what is new")
            written += [*write(), *write()]
        assert other.popen.poll() is None, "it still has what was written"
        client.discard(written)
        assert other.popen.wait(WAIT_S) == 0
