"""The loop of stages: what wakes it, what it answers to new weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.weights import WeightsId, to_model_version
from asyncflow.stages.weightless import Weightless
from asyncflow.workers.context import REPLY_S
from asyncflow.workers.follower import WeightsFollower
from asyncflow.workers.stage import StageLoop, StageWorker
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from tests.workers.worker_desk import NO_EVALUATION, desk, until


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
        loop = StageLoop(context, found.config.stage("reward"), Follower(), None)
        assert not loop.turn()  # a take is open, nothing came
        assert loop._take is not None
        loop._take.cancel()
        until(lambda: (context.pump() or loop._take.done()), "the empty answer")
        assert loop.turn()
        assert not loop.turn()
        assert loop._take is not None
        loop.give_back()


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
        worker = StageWorker(context, [StageLoop(context, found.config.stage("actor_forward"), stage, follower) for stage in stages], [follower])
        running = threading.Thread(target=worker.run)
        running.start()
        until(lambda: all(stage.weights for stage in stages), "both stages have weights")
        context.control.request_stop()
        running.join(10)
        trainer.close()
        over.set()
        serving.join(10)
    assert [[(weights.version, total) for weights, total in stage.weights] for stage in stages] == [[(0, 5.0)], [(0, 5.0)]]
