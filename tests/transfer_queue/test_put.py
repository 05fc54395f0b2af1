"""Someone who writes a trainer of his own: put, take, read, commit through a real queue, without prompts and rollouts."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.local import LocalQueue

BATCH = 8
SPEC = m.TopicSpec(
    name="samples",
    model="policy",
    columns=(
        m.Column(name="question", dtype="uint8", kind="blob", producer="maker", shared=True),
        m.Column(name="ids", dtype="int32", kind="per_token", producer="maker"),
        m.Column(name="score", dtype="float32", kind="scalar", producer="maker"),
        m.Column(name="advantage", dtype="float32", kind="scalar", producer="judge"),
    ),
    consumers=(
        m.Consumer(name="judge", inputs=("score",), outputs=("advantage",), sampler="in_order"),
        m.Consumer(name="trainer", inputs=("question", "ids", "score", "advantage"), unit="group", terminal=True, sampler="in_order"),
    ),
    window=m.Window(batch=BATCH, staleness=None),
)
NAMES = ["question", "ids", "score", "advantage"]


@pytest.fixture
def queue() -> Iterator[LocalQueue]:
    with LocalQueue([SPEC], shards=2) as queue:
        yield queue


def columns(groups: int, each: int, start: int = 0) -> dict[str, object]:
    rows = groups * each
    return {
        "question": [b"question %d" % (start + group) for group in range(groups)],
        "ids": Jagged.of([[start + row] * (row % 3) for row in range(rows)], "int32"),
        "score": np.arange(start, start + rows, dtype="float32"),
    }


def judge(client: QueueClient, limit: int) -> int:
    taken = client.take("samples", "judge", limit=limit, wait_s=5.0).result(10.0)
    scores = client.read(taken.rows, ["score"], SPEC)["score"]
    assert client.write_back("samples", "judge", taken.lease, taken.rows.keys(), {"advantage": scores * 2}).closed == []
    return len(taken.rows)


def used_bytes(client: QueueClient) -> int:
    return sum(status.used_bytes for status in client.shard_status().values())


def test_groups_that_are_put_are_judged_read_and_trained_and_leave_nothing(queue: LocalQueue) -> None:
    with queue.client("maker") as maker, queue.client("judge") as scorer, queue.client("trainer") as trainer:
        reply = maker.put("samples", columns(BATCH, 2), rows_per_group=2, tokens=[1] * 2 * BATCH)
        assert reply.groups == list(range(BATCH))
        assert sum(judge(scorer, 5) for _ in range(4)) == 2 * BATCH
        taken = trainer.take("samples", "trainer", limit=BATCH, at_least=BATCH, step=0, wait_s=5.0).result(10.0)
        assert taken.rows.keys() == [(gid, row) for gid in range(BATCH) for row in range(2)]
        found = trainer.read(taken.rows, NAMES, SPEC)
        assert found["question"] == [b"question %d" % (row // 2) for row in range(2 * BATCH)]
        assert [run.tolist() for run in found["ids"]] == [[row] * (row % 3) for row in range(2 * BATCH)]
        assert np.asarray(found["advantage"]).tolist() == [2.0 * row for row in range(2 * BATCH)]
        assert trainer.commit("samples", "trainer", "policy", 0, 0, [taken.lease]).result(10.0).version == 1
        assert maker.put("samples", columns(1, 1)).groups == [BATCH]
    ended = [event for event in queue.events if event.kind == "group" and event.dst == "trained"]
    assert [event.gid for event in ended] == list(range(BATCH))
    assert {event.data["tokens"] for event in ended} == {2}


def test_a_consumer_that_waits_gets_what_several_producers_put_and_every_row_once(queue: LocalQueue) -> None:
    def make(client: QueueClient, start: int) -> None:
        for at in range(10):
            assert len(client.put("samples", columns(3, 1, start + 3 * at)).groups) == 3

    with queue.client("judge") as scorer, queue.client("a") as one, queue.client("b") as two:
        threads = [threading.Thread(target=make, args=(client, start)) for client, start in ((one, 0), (two, 1000))]
        for thread in threads:
            thread.start()
        seen: list[float] = []
        while len(seen) < 60:
            taken = scorer.take("samples", "judge", limit=7, wait_s=5.0).result(10.0)
            assert taken.lease >= 0
            scores = scorer.read(taken.rows, ["score"], SPEC)["score"]
            seen += np.asarray(scores).tolist()
            scorer.write_back("samples", "judge", taken.lease, taken.rows.keys(), {"advantage": scores})
        for thread in threads:
            thread.join(10.0)
    assert sorted(seen) == [float(start + row) for start in (0, 1000) for row in range(30)]


def test_a_repeated_put_stores_once_and_the_bytes_of_the_repeat_are_freed(queue: LocalQueue) -> None:
    with queue.client("maker") as maker:
        first = maker.put("samples", columns(4, 1), token=1)
        used = used_bytes(maker)
        assert maker.put("samples", columns(4, 1), token=1).groups == first.groups == [0, 1, 2, 3]
        assert maker.put("samples", columns(4, 1), token=2).groups == [4, 5, 6, 7]
        assert queue.status().topics[0].stored_rows == 8
        for _ in range(100):  # the controller frees by messages of its own, which may be on their way: each look is a round trip
            if used_bytes(maker) == 2 * used:
                return
    raise AssertionError("the bytes of the repeat were not freed")


def test_a_put_without_room_stores_no_bytes() -> None:
    narrow = m.TopicSpec(**{name: getattr(SPEC, name) for name in SPEC.__struct_fields__} | {"window": m.Window(batch=2, staleness=0)})
    with LocalQueue([narrow]) as queue, queue.client("maker") as maker:
        maker.put("samples", columns(2, 1))
        used = used_bytes(maker)
        assert maker.put("samples", columns(1, 1), wait_s=0.05).groups == []
        assert used_bytes(maker) == used
        assert maker.put("samples", {}).groups == []


def test_a_put_whose_shared_columns_do_not_fit_the_schema_leaves_no_bytes(queue: LocalQueue) -> None:
    with queue.client("maker") as maker:
        with pytest.raises((TypeError, ValueError), match="question"):
            maker.put("samples", {**columns(4, 1), "question": [b"one", b"two"]})
        assert used_bytes(maker) == 0


@pytest.mark.parametrize(
    ("more", "part"),
    [({"rows_per_group": 3}, "rows_per_group=3"), ({"rows_per_group": 0}, "rows_per_group=0"), ({"gids": [1]}, "1 gids for 4 groups")],
)
def test_columns_that_make_no_whole_groups_are_refused_before_a_byte_moves(queue: LocalQueue, more: dict[str, object], part: str) -> None:
    with queue.client("maker") as maker:
        with pytest.raises(ValueError, match=part):
            maker.put("samples", columns(4, 1), **more)  # type: ignore[arg-type]
        assert used_bytes(maker) == 0
