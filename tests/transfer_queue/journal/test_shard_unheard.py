"""Shards that ended, or hang, before the controller has heard of it: who asks them first does not wait for its own death."""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import queue_run as run
from queue_processes import Process

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.errors import Gone, QueueError
from transfer_queue.local import LocalQueue

WAIT_S = 20.0
COLUMN = "response_ids"


def write(client: QueueClient) -> m.Slice:
    """One row; where it lies."""
    return client.write(range(1), {COLUMN: np.ones((1, 3), dtype="int32")})[COLUMN][0]


def read(client: QueueClient, piece: m.Slice) -> list[list[int]]:
    found: list[list[int]] = client.read([m.RowRef(0, 0, 0, 0, [piece])], [COLUMN], run.spec())[COLUMN].dense().tolist()
    return found


def written_to(client: QueueClient, index: int) -> m.Slice:
    deadline = run.Deadline(WAIT_S)
    while (piece := write(client)).shard != index:
        deadline.check(f"nothing goes to shard {index}")
    return piece


@contextmanager
def told_later(queue: LocalQueue, name: str, after_s: float) -> Iterator[None]:
    """The controller hears of the end of `name` only then."""

    def tell() -> None:
        with QueueClient.outsider(queue.url) as launcher:
            launcher.member_dead(name, "killed by the test").result(WAIT_S)

    timer = threading.Timer(after_s, tell)
    timer.start()
    try:
        yield
    finally:
        timer.join(WAIT_S)


@contextmanager
def two_shards(heartbeat_s: float) -> Iterator[tuple[LocalQueue, Process, Callable[[str], QueueClient]]]:
    """A queue, its shard 1 as a process of its own, and what makes its clients."""
    with LocalQueue([run.spec()], shards=1, heartbeat_s=heartbeat_s) as queue, ExitStack() as stack:
        shard = stack.enter_context(Process("shard", queue.url, "shard-1"))
        shard.heard()
        yield queue, shard, lambda name: stack.enter_context(queue.client(name, timeout_s=WAIT_S))


def test_a_reader_whose_first_question_goes_to_a_dead_shard_hears_of_its_end_and_counts_as_alive() -> None:
    with two_shards(heartbeat_s=4.0) as (queue, shard, client):
        piece = written_to(client("writer"), 1)
        shard.kill()
        reader = client("reader")
        begun = time.monotonic()
        with told_later(queue, "shard-1", 1.0), pytest.raises(Gone):
            read(reader, piece)
        assert time.monotonic() - begun < 5.0, "it was not the deadline that ended it"
        assert write(reader).shard == 0, "it is a member still"


def test_a_writer_whose_first_write_goes_to_a_dead_shard_takes_another_though_nobody_tells_the_controller() -> None:
    with two_shards(heartbeat_s=300.0) as (queue, shard, client):
        shard.kill()
        writer = client("writer")
        begun = time.monotonic()
        assert {write(writer).shard for _ in range(20)} == {0}
        assert time.monotonic() - begun < 4.0, "one wait for the dead one, in all"
        with told_later(queue, "shard-1", 0.0):
            pass
        with Process("shard", queue.url, "shard-1") as again:
            again.heard()
            written_to(writer, 1)
        with told_later(queue, "shard-1", 0.0):
            pass


def test_who_waits_for_a_shard_that_hangs_is_no_less_alive_and_hears_when_it_is_given_up() -> None:
    with two_shards(heartbeat_s=5.0) as (_, shard, client):
        writer = client("writer")
        piece = written_to(writer, 1)
        shard.popen.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(Gone):
            read(writer, piece)
        assert time.monotonic() - begun < 12.0, "the shard's silence ended it, not the reader's deadline"
        assert write(writer).shard == 0


def test_the_status_of_shards_is_of_those_that_are_there_though_this_client_has_not_heard_of_an_end() -> None:
    with two_shards(heartbeat_s=300.0) as (queue, shard, client):
        writer = client("writer")
        written_to(writer, 1)
        shard.kill()
        with told_later(queue, "shard-1", 0.0):
            pass
        assert set(writer.shard_status()) == {0}


def test_a_write_that_was_refused_or_lost_elsewhere_keeps_nothing_in_memory() -> None:
    with two_shards(heartbeat_s=300.0) as (queue, shard, client):
        writer = client("writer")
        written_to(writer, 1)
        gc.collect()
        gc.disable()
        try:
            shard.kill()
            peer = weakref.ref(writer._peers[1])
            values = [np.ones((1, 3), dtype="int32") for _ in range(4)]
            kept = [weakref.ref(each) for each in values]
            while values:
                writer.write(range(1), {COLUMN: values.pop()})
            with told_later(queue, "shard-1", 0.0):
                pass
            deadline = run.Deadline(WAIT_S)
            while 1 in writer._peers:
                deadline.check("the dead shard is not let go")
                write(writer)
            assert peer() is None
            assert [found for found in kept if found() is not None] == []
        finally:
            gc.enable()


def test_a_writer_that_joined_when_the_last_shard_was_gone_waits_for_another_and_counts_as_alive() -> None:
    with LocalQueue([run.spec()], shards=0, heartbeat_s=3.0) as queue, ExitStack() as stack:
        shard = stack.enter_context(Process("shard", queue.url, "shard-0"))
        shard.heard()
        shard.kill()
        with QueueClient.outsider(queue.url) as launcher:
            launcher.member_dead("shard-0", "killed by the test").result(WAIT_S)
        late = stack.enter_context(queue.client("late", timeout_s=5.0))
        with pytest.raises(QueueError, match=r"no shard came within timeout_s=5.*start shards"):
            write(late)
        again = stack.enter_context(Process("shard", queue.url, "shard-0"))
        assert write(late).shard == 0, "waited for, by who is a member still"
        again.heard()


def test_a_writer_whose_only_shard_ended_before_its_first_word_to_it_waits_for_another() -> None:
    """It still has the roster in which the shard is, and hears only when it looks for its address."""
    with LocalQueue([run.spec()], shards=0, heartbeat_s=30.0) as queue, ExitStack() as stack:
        shard = stack.enter_context(Process("shard", queue.url, "shard-0"))
        shard.heard()
        writer = stack.enter_context(queue.client("writer", timeout_s=WAIT_S))
        shard.kill()
        with told_later(queue, "shard-0", 0.0):
            pass
        again = stack.enter_context(Process("shard", queue.url, "shard-0"))
        assert write(writer).shard == 0
        again.heard()


def test_what_will_not_be_published_and_lies_in_a_shard_that_ended_is_let_go_without_a_word() -> None:
    with two_shards(heartbeat_s=300.0) as (queue, shard, client):
        piece = written_to(client("writer"), 1)
        other = client("other")  # it has the roster in which the shard is, and never asked it
        shard.kill()
        with told_later(queue, "shard-1", 0.0):
            pass
        other.discard([piece])
        assert write(other).shard == 0
