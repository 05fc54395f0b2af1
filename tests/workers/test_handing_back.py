"""`rollout.pause_mode: abort`: what new weights interrupt goes back to the queue with all that it has, and any replica goes on with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncflow.contracts.rollout import Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.model import build_model, hf_tensors
from asyncflow.engines.rollout.embedded import EmbeddedRolloutEngine
from asyncflow.workers import unfinished
from asyncflow.workers.groups import GroupBook
from asyncflow.workers.rollout import RolloutWorker
from tests.engines.rollout.rollout_harness import SHAPE as MODEL
from tests.engines.rollout.rollout_harness import load, new_engine
from tests.workers.test_rollout_worker import SHAPE, WEIGHTS, Newer, rollout_worker, take_prompt
from tests.workers.worker_desk import NO_EVALUATION, TRAIN_ONLY, Desk, desk, until
from transfer_queue.messages import Drain, GroupLease

INPUTS = ("response_ids", "rollout_logprobs", "token_versions")
ABORT = (*TRAIN_ONLY, NO_EVALUATION, *SHAPE, "rollout.pause_mode=abort", "batch_size=1", f"stages.train.inputs=[{','.join(INPUTS)}]")


class Idle:
    """A follower that hears of nothing."""

    loaded, pending = WEIGHTS, False

    def reconcile(self) -> None: ...

    def close(self) -> None: ...


def begun(found: Desk, tokens: int) -> RolloutWorker:
    """A worker whose four rows have so many tokens each, and that is about to load newer weights."""
    worker = rollout_worker(found, new_engine(slots=4, kv_width=48))
    take_prompt(worker)
    for _ in range(tokens):
        worker._absorb(worker._meter.chunks())
    worker._follower = Newer()  # type: ignore[assignment]
    return worker


def test_another_replica_goes_on_and_the_response_is_what_one_replica_would_have_made(tmp_path: Path) -> None:
    with desk(tmp_path, *ABORT) as found:
        found.put_prompts(1)
        one = begun(found, tokens=5)
        had = {row: list(trajectory.token_ids) for row, trajectory in one._book._groups[0].pending.items()}
        assert len(had) == 4
        one._load_weights()
        assert len(one._book) == 0
        assert one._engine.capacity().free_slots == 4
        two = RolloutWorker(found.context("rollout-1"), new_engine(slots=4, kv_width=48), None)
        two._follower.loaded = two._engine.loaded
        take_prompt(two)
        assert {row: trajectory.token_ids for row, trajectory in two._book._groups[0].pending.items()} == had
        while len(two._book):
            two._absorb(two._meter.chunks())
        two._writer.drain()
        rows = stored(found)
        for worker in (one, two):
            worker._writer.close()
    for (tokens, logprobs, versions), (expected, expected_logprobs) in zip(rows, uninterrupted(found), strict=True):
        assert tokens == expected
        assert len(tokens) <= 32
        np.testing.assert_allclose(logprobs, expected_logprobs, atol=1e-5)
        assert set(versions) == {0}


def stored(found: Desk) -> list[tuple[list[int], list[float], list[int]]]:
    trainer = found.client("trainer-0", "trainer")
    rows = trainer.take(found.topic, "train", limit=1, step=0, wait_s=5.0).result(10.0).rows
    columns = trainer.read(rows, INPUTS, trainer.topic(found.topic))
    return [tuple(np.asarray(columns[name][at]).tolist() for name in INPUTS) for at in range(len(rows))]  # type: ignore[misc]


def uninterrupted(found: Desk) -> list[tuple[list[int], list[float]]]:
    """The same group at one engine."""
    rollout = found.config.rollout
    book = GroupBook(found.config.run.seed, Sampling(rollout.temperature, rollout.stop_token_ids), rollout.response_width, 4)
    engine = new_engine(slots=4, kv_width=48)
    engine.generate(book.admit(GroupLease(0, 1, 0, [0, 1, 2, 3], {}), [2, 3, 4, 5]))
    finished = {}
    while chunks := engine.chunks():
        for chunk in chunks:
            if (trajectory := book.absorb(chunk)) is not None:
                finished[trajectory.row] = (trajectory.token_ids, trajectory.logprobs)
    return [finished[row] for row in range(4)]


def test_a_replica_that_hands_back_is_not_the_one_that_waits_for_it_already(tmp_path: Path) -> None:
    """Its own pull is called back first: while it loads, others go on."""
    with desk(tmp_path, *ABORT, "rollout.slots=12") as found:
        found.put_prompts(1)
        one = rollout_worker(found, new_engine(slots=12, kv_width=48))
        take_prompt(one)
        one._absorb(one._meter.chunks())
        one._request_prompts()
        assert one._pull is not None
        one._follower = Newer()  # type: ignore[assignment]
        one._load_weights()
        assert one._pull is None
        assert len(one._book) == 0
        assert [event.reason for event in found.events("group")][-1] == "handed_back"
        one._writer.close()


def test_finished_rows_of_a_group_are_in_the_queue_before_its_rest_is_handed_back(tmp_path: Path) -> None:
    with desk(tmp_path, *ABORT) as found:
        found.put_prompts(1)
        one = begun(found, tokens=2)
        fence = one._book.fence(0)
        assert fence is not None
        group = one._book._groups[0]
        row = next(iter(group.pending))
        request_id = next(id_ for id_, known in one._book._requests.items() if known == (0, row))
        trajectory = group.pending[row]
        chunk = msgspec.structs.replace(one._engine.chunks()[0], id=request_id, token_ids=[7], logprobs=[-1.0], finish="stop")
        one._absorb([chunk])  # as if this row had ended just now
        one._load_weights()
        until(lambda: found.queue.status().topics[0].stored_rows == 1, "the row")
        assert trajectory.finish == "stop"
        lease = one._context.client.pull(found.topic, loaded=0, limit=1, wait_s=5.0).result(10.0).groups[0]
        assert lease.rows == [other for other in range(4) if other != row]
        assert set(unfinished.decode(one._context.client.read_left([lease])[0])) == set(lease.rows)
        one._writer.close()


def test_while_the_run_drains_a_replica_goes_on_with_what_it_interrupted(tmp_path: Path) -> None:
    with desk(tmp_path, *ABORT) as found:
        found.put_prompts(1)
        one = begun(found, tokens=5)
        had = {row: list(trajectory.token_ids) for row, trajectory in one._book._groups[0].pending.items()}
        found.client("launcher").submit(Drain(reason="maintenance")).result(10.0)
        one._load_weights()
        trajectories = dict(one._book._groups[0].pending)
        assert {row: trajectory.token_ids for row, trajectory in trajectories.items()} == had
        while len(one._book):
            one._absorb(one._meter.chunks())
        one._writer.drain()
        one._writer.close()
        assert found.queue.status().topics[0].ledger["complete"] == 1
        assert "handed_back" not in [event.reason for event in found.events("group")]
    assert [trajectories[row].token_ids for row in range(4)] == [tokens for tokens, _ in uninterrupted(found)]


def test_a_replica_that_is_told_to_leave_hands_back_what_it_has(tmp_path: Path) -> None:
    with desk(tmp_path, *ABORT) as found:
        found.put_prompts(1)
        one = begun(found, tokens=5)
        one._follower = Idle()  # type: ignore[assignment]
        had = {row: list(trajectory.token_ids) for row, trajectory in one._book._groups[0].pending.items()}
        one._context.control.request_stop()
        one.run()
        two = RolloutWorker(found.context("rollout-1"), new_engine(slots=4, kv_width=48), None)
        two._follower.loaded = two._engine.loaded
        take_prompt(two)
        assert {row: trajectory.token_ids for row, trajectory in two._book._groups[0].pending.items()} == had
        assert found.queue.status().topics[0].lost_attempts == 0
        two._writer.close()


def test_a_replica_that_leaves_in_another_mode_leaves_its_groups_to_be_made_anew(tmp_path: Path) -> None:
    """There tokens never change replicas: a run would depend on when one was told to leave."""
    with desk(tmp_path, *ABORT, "rollout.pause_mode=keep") as found:
        found.put_prompts(1)
        one = begun(found, tokens=5)
        one._follower = Idle()  # type: ignore[assignment]
        one._context.control.request_stop()
        one.run()
        one._context.leave()
        found.contexts.remove(one._context)
        lease = found.client("rollout-1", "rollout").pull(found.topic, loaded=0, limit=1, wait_s=5.0).result(10.0).groups[0]
        assert (lease.gid, lease.left, lease.rows) == (0, None, [0, 1, 2, 3])
        assert found.queue.status().topics[0].lost_attempts == 1


def test_a_replica_whose_engine_cannot_be_paused_leaves_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def died(mode: str) -> None:
        raise RuntimeError("vLLM of rollout-0 ended")

    with desk(tmp_path, *ABORT) as found:
        found.put_prompts(1)
        one = begun(found, tokens=5)
        one._follower = Idle()  # type: ignore[assignment]
        monkeypatch.setattr(one._engine, "pause", died)
        one._context.control.request_stop()
        one.run()
        assert "vLLM of rollout-0 ended; its unfinished groups are generated anew" in capsys.readouterr().err
        one._context.leave()
        found.contexts.remove(one._context)
        lease = found.client("rollout-1", "rollout").pull(found.topic, loaded=0, limit=1, wait_s=5.0).result(10.0).groups[0]
        assert (lease.gid, lease.left, lease.rows) == (0, None, [0, 1, 2, 3])


def test_after_a_rollback_a_response_goes_on_under_a_lower_version_of_a_later_epoch() -> None:
    """Its tokens' version may be above every version of the new epoch, here and wherever it goes on."""
    book = GroupBook(1, Sampling(1.0), 16, rows_per_group=4)
    engine = new_engine(slots=4, kv_width=48)
    load(engine, 5, seed=2)
    engine.generate(book.admit(GroupLease(0, 1, 5, [0, 1], {}), [2, 3, 4]))
    for chunk in engine.chunks():
        book.absorb(chunk)
    engine.pause("abort")
    aborted = engine.chunks()
    engine.load_weights(WeightsId("policy", 1, 3), hf_tensors(build_model(MODEL, seed=3)))
    engine.resume()
    rest = []
    for chunk in aborted:
        book.absorb(chunk)
        rest += [request for request in [book.resume(chunk)] if request is not None]
    assert [(request.min_epoch, request.min_version) for request in rest] == [(0, 5)] * 2
    engine.generate(rest)
    for chunk in engine.chunks():
        assert (chunk.epoch, chunk.version) == (1, 3)
        book.absorb(chunk)
    (left,), ids = book.hand_back()
    tokens = unfinished.decode(left.data)
    assert {row: had[2:] for row, had in tokens.items()} == {row: ([5, 3], {0: (5, 5), 1: (3, 3)}) for row in (0, 1)}
    assert (left.item.oldest_version, left.item.newest_version, left.item.epochs) == (3, 5, {0: (5, 5), 1: (3, 3)})
    engine.abort(ids)
    engine.chunks()
    again = book.admit(GroupLease(0, 2, 0, [0, 1], {}), [2, 3, 4], tokens)
    assert [(request.min_epoch, request.min_version) for request in again] == [(1, 3)] * 2
    engine.generate(again)
    with pytest.raises(ValueError, match="min_version = 3 of epoch 1 is above the loaded version 9 of epoch 0"):
        older(9).generate(again)


def older(version: int) -> EmbeddedRolloutEngine:
    engine = new_engine(slots=4, kv_width=48)
    load(engine, version, seed=2)
    return engine


def test_tokens_keep_their_bits_on_the_way_and_a_torn_record_is_refused() -> None:
    logprobs = np.array([-0.1, -3e-8, -87.5], "<f4").tolist()
    data = unfinished.encode([(3, ([7, 8, 2**31 - 1], logprobs, [0, 0, 4], {2: (0, 4)})), (1, ([], [], [], {}))])
    assert unfinished.decode(data) == {3: ([7, 8, 2**31 - 1], logprobs, [0, 0, 4], {2: (0, 4)})}
    assert unfinished.encode([(1, ([], [], [], {}))]) == b""
    assert unfinished.decode(b"") == {}
    torn = msgspec.msgpack.encode([unfinished.Unfinished(0, b"\0" * 8, b"\0" * 8, b"\0" * 4, {})])
    with pytest.raises(ValueError, match=r"row 0 was handed back with \[2, 2, 1\]"):
        unfinished.decode(torn)
