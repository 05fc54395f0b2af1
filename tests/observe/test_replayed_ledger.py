"""A log in which groups were trained once and replayed later is believed, and no other that looks like it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from asyncflow.observe.replay import Inconsistent, Replay
from transfer_queue import messages as m
from transfer_queue.local import LocalQueue

WAIT_S = 10.0


@pytest.fixture(scope="module")
def log() -> list[m.Event]:
    """Of three batches of two groups; with the second and the third come two groups again."""
    trainer = m.Consumer("train", ("ids",), unit="group", terminal=True, replay=m.Replay(groups=2, keep_groups=3))
    spec = m.TopicSpec("t", "m", (m.Column("ids", "int32", "scalar", "writer"),), (trainer,), m.Window(batch=2, staleness=None))
    with LocalQueue([spec]) as queue, queue.client("me") as client:
        for step in range(3):
            client.put("t", {"ids": np.arange(2, dtype="int32")})
            taken = client.take("t", "train", limit=2, at_least=2, step=step).result(WAIT_S)
            client.commit("t", "train", "m", 0, step, [taken.lease]).result(WAIT_S)
        return list(queue.events)


def counted(events: Sequence[m.Event]) -> Replay:
    replay = Replay()
    for event in events:
        replay.apply(event)
    return replay


def test_trained_once_and_replayed_later(log: list[m.Event]) -> None:
    replay = counted(log)
    assert replay.ledger() == {"trained": 6}
    assert len(replay.trained) == 6
    assert replay.replayed == {("t", gid): sum(event.kind == "replayed" and event.gid == gid for event in log) for _, gid in replay.replayed}
    assert replay.replayed.total() == 4


def test_a_lost_or_doubled_line_of_a_replay_is_noticed(log: list[m.Event]) -> None:
    lines = [number for number, event in enumerate(log) if event.kind == "replayed"]
    assert len(lines) == 4
    for number in lines:
        for changed in ([*log[:number], *log[number + 1 :]], [*log[: number + 1], *log[number:]]):
            with pytest.raises(Inconsistent):
                counted(changed)


def test_a_group_that_was_not_trained_cannot_be_replayed(log: list[m.Event]) -> None:
    number = next(number for number, event in enumerate(log) if event.kind == "replayed")
    strange = msgspec.structs.replace(log[number], gid=4)
    with pytest.raises(Inconsistent, match="group 4 is replayed, and was not trained before"):
        counted([*log[:number], strange, *log[number + 1 :]])
