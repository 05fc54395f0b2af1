"""SIGTERM and Ctrl-C to one part of a queue alone: the first drains it, once more ends it at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import queue_run as run
from serving import EXAMPLE, SOON_S

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.local import LocalQueue

BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.e2e)])


class Part:
    """`python -m transfer_queue controller|shard …`, and where it listens."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "transfer_queue", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.line().rpartition(" ")[2]

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def code(self) -> int:
        return self.process.wait(SOON_S)


@contextmanager
def part(*arguments: str) -> Iterator[Part]:
    """Killed on leaving the context."""
    found = Part(*arguments)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait(SOON_S)
        assert found.process.stdout is not None
        found.process.stdout.close()


@contextmanager
def with_work(*options: str) -> Iterator[tuple[Part, QueueClient, m.GroupLease]]:
    """A controller and a shard, and a member that has a group to finish and another that waits."""
    with ExitStack() as stack:
        controller = stack.enter_context(part("controller", str(EXAMPLE), *options))
        stack.enter_context(part("shard", "--controller", controller.url, "--index", "0"))
        client = stack.enter_context(QueueClient.connect(controller.url, name="me", role="all"))
        client.put_prompts("sums", [0, 1], {"question": ["1 + 1"] * 2}, cursor=2)
        (group,) = client.pull("sums", loaded=0, limit=1).result(SOON_S).groups
        yield controller, client, group


@contextmanager
def one_more_shard(drain_s: str) -> Iterator[tuple[Part, QueueClient]]:
    """Beside one that goes on; and a writer."""
    with LocalQueue([run.spec()], shards=1) as queue, ExitStack() as stack:
        shard = stack.enter_context(part("shard", "--controller", queue.url, "--index", "1", "--drain-s", drain_s))
        yield shard, stack.enter_context(queue.client("writer"))


def became(client: QueueClient, state: str) -> m.Directive:
    directive, deadline = client.watch(wait_s=0.0).result(SOON_S).directive, run.Deadline(SOON_S)
    while directive.state != state:
        deadline.check(f"{directive}")
        directive = client.watch(seen=directive.revision, wait_s=1.0).result(SOON_S).directive
    return directive


@BOTH
def test_a_controller_lets_what_is_under_way_be_finished_and_hands_nothing_new_out(number: signal.Signals) -> None:
    with with_work("--drain-s", "20") as (controller, client, group):
        controller.process.send_signal(number)
        became(client, "drain")
        assert client.pull("sums", loaded=0, limit=1, wait_s=0.0).result(SOON_S).groups == []
        row = m.RowPut(group.gid, group.fence, 0, {}, 1, 0, 0)
        assert client.put_rows("sums", [row], {group.gid: 1}, {"answer": ["2"]}).closed == []
        assert became(client, "stop").reason == "drained"
        client.leave().result(SOON_S)
        assert controller.line() == "ended: drained"
        assert controller.code() == 0


def test_a_controller_that_is_told_once_more_ends_at_once() -> None:
    with with_work("--drain-s", "60") as (controller, client, _):
        controller.process.send_signal(signal.SIGTERM)
        became(client, "drain")
        controller.process.send_signal(signal.SIGTERM)
        assert controller.code() == -signal.SIGTERM


@pytest.mark.e2e
def test_a_controller_stops_when_somebody_takes_too_long() -> None:
    with with_work("--drain-s", "0.3") as (controller, client, _):
        controller.process.send_signal(signal.SIGTERM)
        assert became(client, "stop").reason == "drained"
        assert controller.code() == 0


def test_a_run_that_anybody_asked_to_drain_ends_when_nothing_is_under_way() -> None:
    with LocalQueue([run.spec()]) as queue, queue.client("source") as source:
        run.put_prompts(source, range(2))
        source.submit(m.Drain(reason="maintenance")).result(SOON_S)
        assert became(source, "stop").reason == "drained"


@BOTH
def test_a_shard_takes_nothing_new_and_leaves_with_its_last_bytes_while_the_run_goes_on(number: signal.Signals) -> None:
    with one_more_shard("60") as (shard, client):
        written = [piece for _ in range(2) for piece in write(client)]
        assert {piece.shard for piece in written} == {0, 1}
        shard.process.send_signal(number)
        deadline = run.Deadline(SOON_S)
        while 1 in {piece.shard for piece in written[-8:]}:
            deadline.check("the shard takes in what is new")
            written += [*write(client), *write(client)]
        assert shard.process.poll() is None, "it still has what was written"
        client.discard(written)
        assert shard.line() == "ended: drained"
        assert shard.code() == 0
        assert became(client, "run")


@pytest.mark.e2e
@pytest.mark.parametrize(("drain_s", "signals", "code"), [("0.3", 1, 0), ("60", 2, -signal.SIGTERM)])
def test_a_shard_leaves_at_its_deadline_and_at_once_when_it_is_told_once_more(drain_s: str, signals: int, code: int) -> None:
    with one_more_shard(drain_s) as (shard, client):
        assert {piece.shard for _ in range(2) for piece in write(client)} == {0, 1}
        for _ in range(signals):
            shard.process.send_signal(signal.SIGTERM)
            deadline = run.Deadline(SOON_S)
            while {piece.shard for _ in range(2) for piece in write(client)} != {0}:  # two signals that come at once are one
                deadline.check("the shard does not hear the signal")
        assert shard.code() == code
        client.member_dead("shard-1", "it ended").result(SOON_S)


def write(client: QueueClient) -> list[m.Slice]:
    found: list[m.Slice] = client.write(range(4), {"response_ids": np.ones((4, 3), dtype="int32")})["response_ids"]
    return found
