"""The loop of stages: what wakes it, what it answers to new weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.weights import WeightsId, to_model_version
from asyncflow.rewards.deadline import DeadlineScorer
from asyncflow.rewards.row_clock import uncounted
from asyncflow.stages.weightless import Weightless
from asyncflow.workers.context import REPLY_S
from asyncflow.workers.follower import WeightsFollower
from asyncflow.workers.result_writer import Result, ResultWriter
from asyncflow.workers.stage import StageLoop, StageWorker
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from tests.workers.worker_desk import NO_EVALUATION, Desk, desk, until
from transfer_queue.messages import ConsumerStatus


class Follower(Weightless):
    """A stage that only remembers which weights it was given."""

    def __init__(self) -> None:
        self.weights: list[tuple[WeightsId, float]] = []

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        raise AssertionError("there are no rows in this test")

    def load_weights(self, weights: WeightsId, tensors: Any) -> None:
        self.weights.append((weights, sum(float(tensor.sum()) for _, tensor in tensors)))


def test_an_empty_answer_is_followed_by_a_new_take_before_anybody_waits(tmp_path: Path) -> None:
    """Else rows that come while no take is open are not seen until the next deadline."""
    with desk(tmp_path, NO_EVALUATION) as found:
        context = found.context("scorer-0")
        writer = ResultWriter(context)
        loop = StageLoop(context, found.config.stage("reward"), Follower(), None, writer)
        assert not loop.turn()  # a take is open, nothing came
        assert loop._take is not None
        loop._take.cancel()
        until(lambda: (context.pump() or loop._take.done()), "the empty answer")
        assert loop.turn()
        assert not loop.turn()
        assert loop._take is not None
        loop.give_back()
        writer.close()


def test_every_stage_of_a_process_gets_the_weights_of_their_model(tmp_path: Path) -> None:
    with desk(tmp_path, NO_EVALUATION) as found:
        teller = found.client("publisher-0", "publisher")
        over = threading.Event()
        publisher = Publisher(model="policy", transport="pull", on_published=lambda w: teller.published(to_model_version(w)).result(REPLY_S))
        serving = threading.Thread(target=publisher.run, args=(over,))
        serving.start()
        teller.watch(endpoints={"publisher:policy": publisher.endpoint}, wait_s=0.0).result(REPLY_S)
        trainer = PublisherClient(publisher.endpoint)
        trainer.publish(WeightsId("policy", 0, 0), [("weight", torch.ones(5))], wait_s=5.0)

        context = found.context("actor_forward-0")
        follower = WeightsFollower(context, "policy")
        stages = [Follower(), Follower()]
        writer, served = ResultWriter(context), found.config.stage("actor_forward")
        worker = StageWorker(context, [StageLoop(context, served, stage, follower, writer) for stage in stages], [follower], writer)
        running = threading.Thread(target=worker.run)
        running.start()
        until(lambda: all(stage.weights for stage in stages), "both stages have weights")
        context.control.request_stop()
        running.join(10)
        trainer.close()
        over.set()
        serving.join(10)
    assert [[(weights.version, total) for weights, total in stage.weights] for stage in stages] == [[(0, 5.0)], [(0, 5.0)]]


def test_a_version_that_gives_way_to_a_newer_one_before_it_is_loaded_is_no_error(tmp_path: Path) -> None:
    """The one slot of a receiver: what was read once (and could not be loaded) may be written over while somebody looks at it."""
    with desk(tmp_path, NO_EVALUATION) as found:
        over = threading.Event()
        publisher = Publisher(model="policy", transport="pull")
        serving = threading.Thread(target=publisher.run, args=(over,))
        serving.start()
        found.client("publisher-0", "publisher").watch(endpoints={"publisher:policy": publisher.endpoint}, wait_s=0.0).result(REPLY_S)
        trainer = PublisherClient(publisher.endpoint)
        trainer.publish(WeightsId("policy", 0, 0), [("weight", torch.ones(5))], wait_s=5.0)
        follower = WeightsFollower(found.context("actor_forward-0"), "policy")
        until(lambda: (follower.reconcile() or follower.pending), "version 0 has come")
        receiver, seen = follower._receiver, []
        assert receiver is not None
        with receiver.get_weights():
            pass
        latest = receiver.latest
        newest = latest()

        def written_over() -> WeightsId | None:
            receiver._cache.reserve(WeightsId("policy", 0, 1))
            return newest

        receiver.latest = written_over  # type: ignore[method-assign]
        assert follower.pending
        assert not follower.load_newest(lambda weights, tensors: seen.append(weights))
        receiver.latest = latest  # type: ignore[method-assign]
        assert not follower.pending
        assert not seen
        assert follower.loaded is None
        follower.close()
        trainer.close()
        over.set()
        serving.join(10)


class Looking(Weightless):
    """Remembers at each call whether the next take was open already."""

    def __init__(self) -> None:
        self.loop: StageLoop | None = None
        self.ahead: list[bool] = []
        self.rows: list[int] = []

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        assert self.loop is not None
        self.ahead.append(self.loop._take is not None)
        self.rows.append(len(batch))
        return {"rewards": np.zeros(len(batch), dtype=np.float32)}


def put_groups(found: Desk, count: int, rows: int) -> None:
    found.put_prompts(count)
    client = found.client("rollout-0", "rollout")
    for lease in client.pull(found.topic, loaded=0, limit=count, wait_s=5.0).result(10.0).groups:
        found.put_group(client, lease, rows)


def test_a_full_lease_opens_the_next_take_before_it_is_computed_and_no_other_does(tmp_path: Path) -> None:
    with desk(tmp_path, NO_EVALUATION, "rollout.samples_per_prompt=2", "batch_size=4") as found:
        put_groups(found, 3, rows=2)
        context, looking = found.context("scorer-0"), Looking()
        stage = msgspec.structs.replace(found.config.stage("reward"), limit=4)
        writer = ResultWriter(context)
        looking.loop = loop = StageLoop(context, stage, looking, None, writer)
        while len(looking.ahead) < 2:
            if not loop.turn():
                context.wait(1.0)
        loop.give_back()
        writer.close()
        until(lambda: found.queue.status().topics[0].stored_rows == 6, "the rows")
        rewarded = next(entry for entry in found.queue.status().topics[0].consumers if entry.name == "reward")
    assert looking.ahead == [True, False]
    assert rewarded.done_rows == 6


def test_a_stage_that_compares_many_units_gets_no_fewer(tmp_path: Path) -> None:
    with desk(tmp_path, NO_EVALUATION, "rollout.samples_per_prompt=2", "batch_size=4") as found:
        found.put_prompts(4)
        client = found.client("rollout-0", "rollout")
        first, *others = client.pull(found.topic, loaded=0, limit=4, wait_s=5.0).result(10.0).groups
        context, looking = found.context("scorer-0"), Looking()
        stage = msgspec.structs.replace(found.config.stage("reward"), at_least=6, limit=6)
        writer = ResultWriter(context)
        looking.loop = loop = StageLoop(context, stage, looking, None, writer)
        loop.turn()
        found.put_group(client, first, 2)
        context.wait(0.3)
        assert not loop.turn(), "2 of 6 rows are there"
        for lease in others:
            found.put_group(client, lease, 2)
        while not looking.rows:
            if not loop.turn():
                context.wait(1.0)
        loop.give_back()
        writer.close()
    assert looking.rows[0] == 6


def test_what_a_recalled_take_brought_is_computed_before_another_is_opened(tmp_path: Path) -> None:
    """Else a queue that is never empty would keep a worker from new weights."""
    with desk(tmp_path, NO_EVALUATION, "rollout.samples_per_prompt=2", "batch_size=4") as found:
        put_groups(found, 3, rows=2)
        context, looking = found.context("scorer-0"), Looking()
        writer = ResultWriter(context)
        looking.loop = loop = StageLoop(context, msgspec.structs.replace(found.config.stage("reward"), limit=2), looking, None, writer)
        assert not loop.turn()
        loop.recall()
        assert loop._take is None
        writer.close()
    assert looking.ahead == [False]


class Noting(Weightless):
    """Notes its name when it computes."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        self.calls.append(self.name)
        return {"rewards": np.zeros(len(batch), dtype=np.float32)}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("recalled", [False, True])
def test_a_process_with_two_stages_computes_first_what_it_was_given_first(first: int, recalled: bool, tmp_path: Path) -> None:
    """The stall report takes the first lease of a member for the one that it is at."""
    with desk(tmp_path, NO_EVALUATION, "rollout.samples_per_prompt=2", "batch_size=4") as found:
        calls: list[str] = []
        context = found.context("scorer-0")
        writer = ResultWriter(context)
        stage = msgspec.structs.replace(found.config.stage("reward"), limit=2)
        loops = [StageLoop(context, stage, Noting(name, calls), None, writer) for name in ("zeroth", "first")]
        loops[first].open()
        loops[1 - first].open()
        put_groups(found, 2, rows=2)  # a lease for each
        until(lambda: (context.pump(), all(loop.answered() for loop in loops))[1], "both leases")
        worker = StageWorker(context, loops, [], writer)
        if recalled:
            worker._recall(loops)
        else:
            assert [worker._turn(), worker._turn()] == [True, True]
        for loop in loops:
            loop.give_back()
        writer.close()
    assert calls == (["zeroth", "first"] if first == 0 else ["first", "zeroth"])


def test_outputs_that_cannot_be_written_end_the_worker_by_its_next_look(tmp_path: Path) -> None:
    with desk(tmp_path, NO_EVALUATION) as found:
        context = found.context("scorer-0")
        writer = ResultWriter(context)
        writer.put(Result("reward", 7, [(0, 0)], {"no_such_column": np.zeros(1)}, None))
        until(lambda: writer._error is not None, "the refusal")
        with pytest.raises(ValueError, match="no_such_column"):
            writer.check()
        writer.close()


def rewarded(found: Desk) -> ConsumerStatus:
    return next(entry for entry in found.queue.status().topics[0].consumers if entry.name == "reward")


class SlowToStart(Weightless):
    """Its scorer is started anew at the first row, for longer than a lease lasts. Counts the rows of all that share it."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.rows, self.lock = seconds, 0, threading.Lock()
        self._scorer = DeadlineScorer(self._score, 0.5)

    def _score(self, item: bytes, response_ids: Sequence[int]) -> float:
        with self.lock:
            self.rows += 1
            seconds, self.seconds = self.seconds, 0.0
        if seconds:
            with uncounted("starting the scorer", 20.0):
                time.sleep(seconds)
        return 0.0

    def __call__(self, batch: StageBatch) -> Mapping[str, np.ndarray]:
        scores = self._scorer([b""] * len(batch), [[0]] * len(batch))
        assert None not in scores
        return {"rewards": np.array(scores, dtype=np.float32)}

    def close(self) -> None:
        self._scorer.close()


def test_rows_whose_scorer_is_started_anew_are_scored_once(tmp_path: Path) -> None:
    """Their lease stands still meanwhile: before, others got them, and scored them as well."""
    with desk(tmp_path, NO_EVALUATION, "rollout.samples_per_prompt=2", "batch_size=4", "limits.lease_s=1") as found:
        put_groups(found, 2, rows=2)
        slow, quick = SlowToStart(3.0), SlowToStart(0.0)
        stage = found.config.stage("reward")
        workers = []
        for name, compute in (("scorer-0", slow), ("scorer-1", quick)):
            context = found.context(name)
            writer = ResultWriter(context)
            worker = StageWorker(context, [StageLoop(context, stage, compute, None, writer)], [], writer)
            workers.append((context, threading.Thread(target=worker.run)))
            workers[-1][1].start()
            if compute is slow:
                until(lambda: slow.rows, "the first has the rows")
        until(lambda: rewarded(found).done_rows == 4, "all rows have their reward")
        for context, running in workers:
            context.control.request_stop()
            running.join(10)
        assert (slow.rows, quick.rows, rewarded(found).expired_leases) == (4, 0, 0)
